#include "testkit/device_memory.h"

namespace rowmax::testkit {

void* DeviceMirror::map(const void* host) const {
  const auto* address = static_cast<const unsigned char*>(host);
  for (const Copy& copy : copies_) {
    if (address >= copy.host.data && address < copy.host.data + copy.host.bytes) {
      return copy.device + (address - copy.host.data);
    }
  }
  return nullptr;
}

AttentionTensors DeviceMirror::map(const AttentionTensors& tensors) const {
  AttentionTensors mapped = tensors;
  for (ConstTensorView* view :
       {&mapped.q, &mapped.k, &mapped.v, &mapped.lengths.cu_seqlens_q, &mapped.lengths.cu_seqlens_k,
        &mapped.lengths.seqused_q, &mapped.lengths.seqused_k, &mapped.lengths.block_table,
        &mapped.score.mask, &mapped.score.bias, &mapped.score.slopes, &mapped.score.documents_q,
        &mapped.score.documents_k, &mapped.score.sinks, &mapped.grad.dout, &mapped.grad.dlse}) {
    view->data = map(view->data);
  }
  for (TensorView* view :
       {&mapped.out, &mapped.lse, &mapped.grad.dq, &mapped.grad.dk, &mapped.grad.dv,
        &mapped.grad.dbias, &mapped.grad.dsinks, &mapped.grad.dslopes}) {
    view->data = map(view->data);
  }
  mapped.dropout.device_state = static_cast<const uint64_t*>(map(tensors.dropout.device_state));
  return mapped;
}

}  // namespace rowmax::testkit
