// The kernel of the field modulo 2^32 - 5, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds field_multiply to the module.
void define_field(nanobind::module_& m);
