// Checks of the native kernels without Python, for sanitizers, valgrind and emulators:
//
//   selftest vectors FILE [PATH...]       the given CPU paths, or all that this machine has:
//   replays
//                                         FILE, which scripts/generate/native_vectors.py writes,
//                                         and compares the paths
//   selftest secrets DRAW [KERNEL...]     for valgrind; scripts/checks/constant_time.py calls it
//
// Exit status 0 if all is well, 1 if something differs, 2 for a wrong call.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"
#include "selftest_support.h"

namespace {

using namespace fsl::selftest;

#if defined(__x86_64__)
const std::vector<std::string> kPaths = {"portable", "aesni", "vaes256", "vaes512"};
#elif defined(__aarch64__)
const std::vector<std::string> kPaths = {"portable", "arm"};
#else
const std::vector<std::string> kPaths = {"portable"};
#endif

constexpr int kAbsent = 77;

// In a process of its own, because a process keeps the path it has once chosen. Prints digests.
int run_path(const char* name, const std::string& vectors, std::FILE* out) {
  setenv("TORCHFSL_CPU_PATH", name, 1);
  try {
    fsl::active_path();
  } catch (const std::invalid_argument&) {
    return kAbsent;
  }
  try {
    std::fprintf(out, "%zu vectors\n", replay_vectors(vectors));
    for (const Digest& digest : run_shapes()) {
      std::fprintf(out, "%016llx %s\n", static_cast<unsigned long long>(digest.value),
                   digest.kernel.c_str());
    }
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "[selftest] %s: %s\n", name, failure.what());
    return 1;
  }
}

// Exit status of a path's process; `report` receives what it printed.
int fork_path(const char* name, const std::string& vectors, std::string& report) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    close(ends[0]);
    std::FILE* out = fdopen(ends[1], "w");
    const int status = run_path(name, vectors, out);
    std::fclose(out);
    std::exit(status);
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    report.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The first line that differs.
std::string difference(const std::string& a, const std::string& b) {
  std::istringstream x(a), y(b);
  for (std::string left, right;;) {
    const bool more = static_cast<bool>(std::getline(x, left));
    if (!more || !std::getline(y, right)) return "the end";
    if (left != right) return right;
  }
}

int run_vectors(const std::string& vectors, const std::vector<std::string>& paths) {
  int failures = 0;
  std::string first;
  for (const std::string& path : paths) {
    const char* const name = path.c_str();
    std::string report;
    const int status = fork_path(name, vectors, report);
    if (status == kAbsent) {
      std::printf("[selftest] %s: skipped, this machine lacks it\n", name);
      continue;
    }
    if (first.empty()) first = report;
    const bool same = report == first;
    failures += status != 0 || !same;
    if (status != 0) {
      std::printf("[selftest] %s: FAILED with status %d\n", name, status);
    } else if (!same) {
      std::printf("[selftest] %s: FAILED, differs from the first path at %s\n", name,
                  difference(first, report).c_str());
    } else {
      std::printf("[selftest] %s: passed, %s", name,
                  report.substr(0, report.find('\n') + 1).c_str());
    }
  }
  if (first.empty()) {
    std::printf("[selftest] FAILED: no path has run\n");
    return 1;
  }
  // The same on every machine, so that runs on different CPUs can be compared.
  const std::uint64_t digest = extend(kEmptyDigest, first.data(), first.size());
  std::printf("[selftest] digest %016llx\n", static_cast<unsigned long long>(digest));
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "vectors" && argc == 3) return run_vectors(argv[2], kPaths);
    if (mode == "vectors" && argc > 3) return run_vectors(argv[2], {argv + 3, argv + argc});
    if (mode == "secrets" && argc >= 3) {
      run_secrets(static_cast<unsigned>(std::stoul(argv[2])), {argv + 3, argv + argc});
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[selftest] %s\n", error.what());
    return 2;
  }
  std::fprintf(stderr, "usage: selftest vectors FILE [PATH...] | secrets DRAW [KERNEL...]\n");
  return 2;
}
