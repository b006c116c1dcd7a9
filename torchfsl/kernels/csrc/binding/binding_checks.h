// The kernels of the two checks, for Python.
#pragma once

#include <nanobind/nanobind.h>

// Adds check_gen, verify, authenticate and tags to the module.
void define_checks(nanobind::module_& m);
