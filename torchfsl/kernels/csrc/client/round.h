// One client in one round, step by step: torchfsl.fsl.client.round, report and trees.
#pragma once

#include <string>

#include "prove.h"

namespace fsl::client {

class Round {
 public:
  // With wrong rows a round of dummies; `wrong` says then what is wrong.
  Round(const Plan& plan, u64 client, u64 number, const tfsl_rows* wanted, std::size_t num_wanted,
        Random random);

  void next(tfsl_step& step) const;
  void give(View answer);
  const Rows& rows(u32 segment) const;
  const Bytes& clear(u32 tensor) const;
  void submit(const tfsl_part* parts, std::size_t num, u64 weight);
  void abort();

  std::string wrong;
  std::string message;  // of the last call that failed

 private:
  enum Phase {
    kSendTreesCommit,
    kSendTrees,
    kAskModel,
    kAskDigest,
    kAskFirst,
    kAskSecond,
    kTraining,
    kSendReportCommit,
    kSendReport,
    kEnded,
  };
  struct Outgoing {
    Bytes commit, body;  // for the other server, and for the public party
  };

  void seal_seeds();
  void make_trees(const std::vector<Vector<i64>>& wanted);
  void make_report(const std::vector<Part>& parts, u64 weight, u32 outcome);
  bool draw_report(const std::vector<Part>& parts, u64 weight, const Key& hint_nonce);
  void write_values(const ReportContext& report, const std::vector<Part>& parts, u64 weight,
                    std::vector<Selection>& late, u8*& out, Sent& sent) const;
  void take_answer(View answer);
  void read_model(View digests);
  void begin_training();
  Bytes message_of(Kind kind, unsigned party) const;
  View checked_body(View answer, Kind kind, unsigned party) const;
  unsigned first() const { return context_.public_party(); }
  unsigned asked_party() const;
  Kind kind() const;

  const Plan& plan_;
  Random random_;
  TreeContext context_;
  Key seeds_[2];
  Bytes sent_seeds_[2];
  std::vector<Selection> early_;
  Outgoing outgoing_;
  Phase phase_ = kAskModel;
  u32 outcome_ = TFSL_OUTCOME_NONE;
  bool aborted_ = false;
  Bytes heard_, model_, answers_[2];
  std::vector<Bytes> clear_;
  std::vector<Rows> rows_;
};

}  // namespace fsl::client
