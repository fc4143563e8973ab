// Everything of the C++ interface. The C interface is rowmax/c_api.h.
#pragma once

#include "rowmax/attention.h"
#include "rowmax/dtype.h"
#include "rowmax/plan.h"
#include "rowmax/problem.h"
#include "rowmax/state.h"
#include "rowmax/status.h"
#include "rowmax/tensor.h"
#include "rowmax/version.h"
