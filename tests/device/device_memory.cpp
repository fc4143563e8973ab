#include "device_memory.h"

#include "kernels.h"

namespace rowmax::test {
namespace {

// A counter in GPU memory that a kernel adds to.
template <class Count>
unsigned long long counted(const Count& count) {
  DeviceBuffer counter(sizeof(unsigned long long));
  unsigned long long value = 0;
  (void)cudaMemset(counter.data(), 0, counter.bytes());
  count(reinterpret_cast<unsigned long long*>(counter.data()));
  succeeded(cudaMemcpy(&value, counter.data(), sizeof(value), cudaMemcpyDeviceToHost), "count");
  return value;
}

// The rows of a view of two to four axes as a copy's destination.
RowCopy rows_of(const TensorView& view) {
  RowCopy copy;
  const int outer = view.rank - 1;
  const auto bytes = static_cast<int64_t>(size_of(view.dtype));
  for (int axis = 0; axis < outer; ++axis) {
    copy.sizes[3 - outer + axis] = view.sizes[axis];
    copy.to_strides[3 - outer + axis] = view.strides[axis] * bytes;
  }
  copy.row_bytes = view.sizes[outer] * bytes;
  copy.to = static_cast<char*>(view.data);
  return copy;
}

}  // namespace

bool succeeded(cudaError_t error, const char* call) {
  EXPECT_EQ(error, cudaSuccess) << call << ": " << cudaGetErrorString(error);
  return error == cudaSuccess;
}

void DeviceBuffer::allocate(size_t bytes) {
  (void)cudaFree(data_);
  data_ = nullptr;
  bytes_ = succeeded(cudaMalloc(&data_, bytes > 0 ? bytes : 1), "cudaMalloc") ? bytes : 0;
  poison();
}

void DeviceBuffer::poison() {
  (void)cudaMemset(data_, 0xFF, bytes_);
  succeeded(cudaDeviceSynchronize(), "poison");
}

Stream::Stream() {
  succeeded(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

void Stream::wait() const { succeeded(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

Graph::~Graph() {
  if (executable_ != nullptr) {
    (void)cudaGraphExecDestroy(executable_);
  }
  if (graph_ != nullptr) {
    (void)cudaGraphDestroy(graph_);
  }
}

void Graph::begin() {
  succeeded(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
}

void Graph::end() {
  if (succeeded(cudaStreamEndCapture(stream_, &graph_), "cudaStreamEndCapture")) {
    succeeded(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
}

void Graph::replay() {
  succeeded(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
  succeeded(cudaStreamSynchronize(stream_), "replay");
}

size_t Graph::nodes() const {
  size_t count = 0;
  succeeded(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
  return count;
}

unsigned long long differences(const void* a, const void* b, int64_t bytes) {
  return counted(
      [&](unsigned long long* count) { count_differences(a, b, bytes, count, nullptr); });
}

unsigned long long written_words(const void* data, int64_t bytes) {
  return counted([&](unsigned long long* count) { count_written(data, bytes, count, nullptr); });
}

void copy_view(const TensorView& to, const ConstTensorView& from) {
  RowCopy copy = rows_of(to);
  copy.from = static_cast<const char*>(from.data);
  const int outer = from.rank - 1;
  for (int axis = 0; axis < outer; ++axis) {
    copy.from_strides[3 - outer + axis] =
        from.strides[axis] * static_cast<int64_t>(size_of(from.dtype));
  }
  copy_rows(copy, nullptr);
  succeeded(cudaGetLastError(), "copy_rows");
}

void poison_view(const TensorView& view) {
  copy_rows(rows_of(view), nullptr);
  succeeded(cudaGetLastError(), "copy_rows");
}

void DeviceTest::SetUp() {
  const Result<DeviceInfo> device = find_device("cuda");
  if (!device.ok()) {
    GTEST_SKIP() << device.status().message();
  }
  if (device->isa != "sm90") {
    GTEST_SKIP() << device->name << " is of architecture " << device->isa
                 << ", kernels are for sm90";
  }
  device_ = *device;
}

}  // namespace rowmax::test
