// The matrix products, modulo 2^32 - 5 and modulo powers of two, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds field_multiply and ring_multiply to the module.
void define_products(nanobind::module_& m);
