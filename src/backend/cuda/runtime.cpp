#include "backend/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/check.h"

namespace rowmax::cuda {
namespace sm90 {

#define ROWMAX_INSTANCE(name, ...) Status enqueue_##name(const KernelLaunch& launch);
#define ROWMAX_HELPER(name, ...) Status enqueue_sm90_##name(const KernelLaunch& launch);
#include "backend/cuda/sm90/backward/helpers.def"
#include "backend/cuda/sm90/backward/instances.def"
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_HELPER
#undef ROWMAX_INSTANCE

}  // namespace sm90
namespace {

// The bulk copy engine reads boxes whose base and outer strides are multiples of this.
constexpr int64_t kAlignmentBytes = 16;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

// "sm90" of compute capability 9.0.
std::string architecture(int device) {
  return "sm" + std::to_string(attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
                               attribute(cudaDevAttrComputeCapabilityMinor, device));
}

// The current device, put back at the end of a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    status_ = cuda_status(cudaGetDevice(&before_), "cudaGetDevice");
    if (status_.ok() && before_ != device) {
      status_ = cuda_status(cudaSetDevice(device), "cudaSetDevice");
      changed_ = status_.ok();
    }
  }
  ~DeviceScope() {
    if (changed_) {
      (void)cudaSetDevice(before_);
    }
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  Status status_;
  int before_ = 0;
  bool changed_ = false;
};

std::string refused(const char* name, const char* what, int64_t value, const char* accepted) {
  return std::string(name) + ": " + what + " " + std::to_string(value) + "; accepted: " + accepted;
}

Status check_alignment(const char* name, const TensorArg& arg) {
  static constexpr const char* kRule = "a multiple of 16 bytes (operands are read in bulk)";
  if (reinterpret_cast<uintptr_t>(arg.data) % kAlignmentBytes != 0) {
    return Status::invalid(refused(
        name, "address is", static_cast<int64_t>(reinterpret_cast<uintptr_t>(arg.data)), kRule));
  }
  const struct {
    const char* text;
    int64_t stride;
  } axes[] = {{"batch stride in bytes is", arg.batch},
              {"sequence stride in bytes is", arg.seq},
              {"head stride in bytes is", arg.head}};
  for (const auto& axis : axes) {
    const int64_t bytes = axis.stride * static_cast<int64_t>(size_of(arg.dtype));
    if (bytes % kAlignmentBytes != 0) {
      return Status::invalid(refused(name, axis.text, bytes, kRule));
    }
  }
  return {};
}

Status check_operands(const AttentionArgs& args) {
  const GradientArgs& grad = args.grad;
  const struct {
    const char* name;
    const TensorArg& arg;
  } operands[] = {{"q", args.q},       {"k", args.k},   {"v", args.v},   {"out", args.out},
                  {"dout", grad.dout}, {"dq", grad.dq}, {"dk", grad.dk}, {"dv", grad.dv}};
  for (const auto& operand : operands) {
    if (Status status = check_alignment(operand.name, operand.arg); !status.ok()) {
      return status;
    }
  }
  return {};
}

// OK when `data` is memory of this device; null is an absent tensor.
Status check_device(const char* name, const void* data, int device) {
  if (data == nullptr) {
    return {};
  }
  cudaPointerAttributes attributes = {};
  if (Status status =
          cuda_status(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
      !status.ok()) {
    return status;
  }
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return Status::invalid(std::string(name) + ": in host memory; accepted: memory of a GPU");
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    return Status::invalid(std::string(name) + ": on device " + std::to_string(attributes.device) +
                           "; accepted: device " + std::to_string(device) +
                           ", which holds the outputs");
  }
  return {};
}

// Every tensor and the workspace on one device.
Status check_devices(const KernelLaunch& launch, int device) {
  const AttentionArgs& args = *launch.args;
  const struct {
    const char* name;
    const void* data;
  } tensors[] = {{"out", args.out.data},
                 {"q", args.q.data},
                 {"k", args.k.data},
                 {"v", args.v.data},
                 {"lse", args.lse.data},
                 {"cu_seqlens_q", args.sequence.cu_q.data},
                 {"cu_seqlens_k", args.sequence.cu_k.data},
                 {"seqused_q", args.sequence.used_q.data},
                 {"seqused_k", args.sequence.used_k.data},
                 {"slopes", args.score.slopes},
                 {"sinks", args.score.sinks},
                 {"dout", args.grad.dout.data},
                 {"dlse", args.grad.dlse.data},
                 {"dq", args.grad.dq.data},
                 {"dk", args.grad.dk.data},
                 {"dv", args.grad.dv.data},
                 {"dsinks", args.grad.dsinks},
                 {"workspace", launch.next_item}};
  for (const auto& tensor : tensors) {
    if (Status status = check_device(tensor.name, tensor.data, device); !status.ok()) {
      return status;
    }
  }
  return {};
}

// The device that holds a pointer; host memory counts as the current one and is refused later.
Result<int> device_of(const void* data) {
  cudaPointerAttributes attributes = {};
  if (Status status =
          cuda_status(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
      !status.ok()) {
    return status;
  }
  return attributes.device >= 0 ? attributes.device : 0;
}

Result<DeviceInfo> device_info(int ordinal) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return Status::unsupported("no CUDA driver or no GPU on this machine");
  }
  if (ordinal < 0 || ordinal >= count) {
    return Status::unsupported("device cuda:" + std::to_string(ordinal) + ": this process sees " +
                               std::to_string(count) + " GPUs");
  }
  cudaDeviceProp properties = {};
  if (Status status =
          cuda_status(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
      !status.ok()) {
    return status;
  }
  DeviceInfo device;
  device.kind = "cuda";
  device.name = properties.name;
  device.isa = architecture(ordinal);
  device.l1_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  device.l2_bytes = properties.l2CacheSize;
  device.cores = properties.multiProcessorCount;
  device.ordinal = ordinal;
  device.clock_ghz = attribute(cudaDevAttrClockRate, ordinal) * 1e-6;
  // Two transfers a clock on every wire of the bus.
  device.memory_gbps = 2.0 * attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e3 *
                       (attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0) * 1e-9;
  return device;
}

// A tensor that is written and has elements, if any does: it says which device works.
const void* written(const AttentionArgs& args) {
  const GradientArgs& grad = args.grad;
  const void* const outputs[] = {grad.dq.data, grad.dk.data, grad.dv.data, grad.dsinks,
                                 args.out.data};
  for (const void* data : outputs) {
    if (data != nullptr) {
      return data;
    }
  }
  return nullptr;
}

Status enqueue_plan(const detail::PlanData& plan, const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  if (Status status = check_operands(args); !status.ok()) {
    return status;
  }
  const void* output = written(args);
  if (output == nullptr) {
    return {};  // nothing to write
  }
  const Result<int> device = device_of(output);
  if (!device.ok()) {
    return device.status();
  }
  if (Status status = check_devices(launch, *device); !status.ok()) {
    return status;
  }
  if (architecture(*device) != plan.device.isa) {
    return Status::invalid("outputs: on a GPU of architecture " + architecture(*device) +
                           "; accepted: " + plan.device.isa + ", the plan's");
  }
  const DeviceScope scope(*device);
  if (!scope.status().ok()) {
    return scope.status();
  }
  KernelLaunch step_launch = launch;
  for (const detail::PlanStep& step : plan.steps) {
    if (step.schedule.items <= 0) {
      continue;
    }
    step_launch.config = &step.kernel->config;
    step_launch.schedule = step.schedule;
    if (Status status = step.kernel->enqueue(step_launch); !status.ok()) {
      return status;
    }
  }
  return {};
}

Enqueue kernel_of(std::string_view name) {
  static constexpr struct {
    std::string_view name;
    Enqueue enqueue;
  } kKernels[] = {
#define ROWMAX_INSTANCE(name, ...) {#name, sm90::enqueue_##name},
#define ROWMAX_HELPER(name, ...) {"sm90_" #name, sm90::enqueue_sm90_##name},
#include "backend/cuda/sm90/backward/helpers.def"
#include "backend/cuda/sm90/backward/instances.def"
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_HELPER
#undef ROWMAX_INSTANCE
  };
  for (const auto& kernel : kKernels) {
    if (kernel.name == name) {
      return kernel.enqueue;
    }
  }
  return nullptr;
}

}  // namespace

const Runtime& runtime() {
  static constexpr Runtime kRuntime = {device_info, enqueue_plan, kernel_of};
  return kRuntime;
}

}  // namespace rowmax::cuda
