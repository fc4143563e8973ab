#include "backend/cuda/trace.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cuda/check.h"

namespace rowmax::cuda {
namespace {

constexpr size_t kRecords = size_t{kTraceCtas} * kTraceRoles * kTraceRecords;

// Leaked: the process ends when it is read.
TraceRecord* g_records = nullptr;
const char* g_kernel = "";

const char* role_name(int role) {
  static const char* const kNames[kTraceRoles] = {"warpgroup 0", "warpgroup 1", "warpgroup 2",
                                                  "warpgroup 3", "K loader",    "V loader",
                                                  "scheduler"};
  return kNames[role];
}

const char* state_name(int state) {
  static const char* const kNames[] = {
      "",        "wait keys", "wait turn",    "issue", "wait scores",
      "maximum", "wait out",  "exponentials", "store", "wait stage",
      "load",    "wait tile", "decode"};
  return kNames[state];
}

void write_role(std::FILE* file, const TraceRecord* records, int cta, int role, uint64_t start) {
  std::fprintf(file,
               ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
               "\"args\":{\"name\":\"%s\"}}",
               cta, role, role_name(role));
  for (int i = 0; i + 1 < kTraceRecords && records[i + 1].state != 0; ++i) {
    const TraceRecord& at = records[i];
    std::fprintf(file,
                 ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%llu,\"dur\":%llu,\"pid\":%d,\"tid\":%d,"
                 "\"args\":{\"block\":%d}}",
                 state_name(at.state), static_cast<unsigned long long>(at.clock - start),
                 static_cast<unsigned long long>(records[i + 1].clock - at.clock), cta, role,
                 at.block);
  }
}

void write_trace() {
  std::vector<TraceRecord> records(kRecords);
  if (cudaDeviceSynchronize() != cudaSuccess ||
      cudaMemcpy(records.data(), g_records, kRecords * sizeof(TraceRecord),
                 cudaMemcpyDeviceToHost) != cudaSuccess) {
    std::fprintf(stderr, "rowmax: no trace: the device does not answer\n");
    return;
  }
  std::FILE* file = std::fopen(std::getenv("ROWMAX_TRACE"), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "rowmax: no trace: %s cannot be written\n", std::getenv("ROWMAX_TRACE"));
    return;
  }
  std::fprintf(file,
               "{\"otherData\":{\"kernel\":\"%s\",\"unit\":\"clocks\"},\"traceEvents\":[\n"
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"CTA 0\"}}",
               g_kernel);
  for (int cta = 0; cta < kTraceCtas; ++cta) {
    const TraceRecord* of_cta = &records[static_cast<size_t>(cta) * kTraceRoles * kTraceRecords];
    const uint64_t start = of_cta[kTraceSchedule * kTraceRecords].clock;
    for (int role = 0; role < kTraceRoles; ++role) {
      write_role(file, of_cta + role * kTraceRecords, cta, role, start);
    }
  }
  std::fprintf(file, "\n]}\n");
  std::fclose(file);
}

}  // namespace

Result<TraceRecord*> begin_trace(void* stream, const char* kernel) {
  if (std::getenv("ROWMAX_TRACE") == nullptr) {
    return static_cast<TraceRecord*>(nullptr);
  }
  if (g_records == nullptr) {
    // The call may be captured into a graph, where this thread could not allocate otherwise.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess) {
      error = cudaMalloc(reinterpret_cast<void**>(&g_records), kRecords * sizeof(TraceRecord));
      (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    if (error != cudaSuccess) {
      return cuda_status(error, "cudaMalloc", kernel);
    }
    std::atexit(write_trace);
  }
  g_kernel = kernel;
  if (Status status = cuda_status(cudaMemsetAsync(g_records, 0, kRecords * sizeof(TraceRecord),
                                                  static_cast<cudaStream_t>(stream)),
                                  "cudaMemsetAsync", kernel);
      !status.ok()) {
    return status;
  }
  return g_records;
}

}  // namespace rowmax::cuda
