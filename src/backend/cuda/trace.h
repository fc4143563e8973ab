// Where kernels of trace builds (ROWMAX_CUDA_TRACE) record, and the file that is written at exit.
#pragma once

#include "backend/cuda/trace_record.h"
#include "rowmax/status.h"

namespace rowmax::cuda {

// Device memory for the records of a launch on `stream`, zeroed there; null in other builds and
// when the environment variable ROWMAX_TRACE, the file to write, is not set. The records of the
// last launch are written as Chrome trace JSON when the process ends; a microsecond there is a
// clock of the multiprocessor.
Result<TraceRecord*> begin_trace(void* stream, const char* kernel);

}  // namespace rowmax::cuda
