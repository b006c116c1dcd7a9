// The kernels of proofs, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds leaf_sums, carry_sums, square_sums, query_proof and field_transform to the module.
void define_proofs(nanobind::module_& m);
