// The kernels of proofs, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds leaf_sums, carry_sums and square_sums to the module.
void define_proofs(nanobind::module_& m);
