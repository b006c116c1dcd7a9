// The kernels of the two checks, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds check_gen, verify, authenticate, tags and row_digests to the module.
void define_checks(nanobind::module_& m);
