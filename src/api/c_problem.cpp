#include "api/c_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace rowmax {
namespace {

// The layout is the ABI: a field may only be added at the end of a versioned struct, and the size
// before it joins the sizes that read_versioned is given.
static_assert(sizeof(void*) != 8 || sizeof(rowmax_tensor) == 80);
static_assert(sizeof(void*) != 8 || sizeof(rowmax_problem) == 264);
static_assert(*(kProblemSizes.end() - 1) == sizeof(rowmax_problem));
static_assert(sizeof(void*) != 8 || sizeof(rowmax_tensors) == 8 + 24 * 80 + 40);
static_assert(sizeof(void*) != 8 || sizeof(rowmax_plan_options) == 40);
static_assert(sizeof(void*) != 8 || sizeof(rowmax_execute_options) == 48);

static_assert(ROWMAX_INTERNAL == static_cast<int>(StatusCode::kInternal));
static_assert(ROWMAX_I64 == static_cast<int>(DType::kI64));
static_assert(ROWMAX_PAGED == static_cast<int>(Source::kPaged));
static_assert(ROWMAX_TOP_LEFT == static_cast<int>(Alignment::kTopLeft));
static_assert(ROWMAX_BACKWARD == static_cast<int>(Op::kBackward));

// Reads fields one by one and remembers the first that is out of range.
class FieldReader {
 public:
  bool flag(const char* name, int32_t value) { return enumerator(name, value, 1) == 1; }

  int enumerator(const char* name, int32_t value, int last) {
    if (status_.ok() && (value < 0 || value > last)) {
      status_ = Status::invalid(fmt::format("{}: is {}; accepted: 0 to {}", name, value, last));
    }
    return value;
  }

  DType dtype(const char* name, rowmax_dtype value) {
    return static_cast<DType>(enumerator(name, value, ROWMAX_I64));
  }

  BroadcastShape broadcast(const char* name, const rowmax_broadcast& in) {
    BroadcastShape out;
    out.present = flag(name, in.present);
    if (out.present) {
      out.dtype = dtype(name, in.dtype);
      out.batch = flag(name, in.batch);
      out.heads = flag(name, in.heads);
      out.rows = flag(name, in.rows);
      out.cols = flag(name, in.cols);
    }
    return out;
  }

  void fail(std::string message) {
    if (status_.ok()) {
      status_ = Status::invalid(std::move(message));
    }
  }

  const Status& status() const { return status_; }

 private:
  Status status_;
};

void read_score(const rowmax_problem& in, FieldReader* reader, ScoreOptions* out) {
  out->scale = in.scale;
  out->softcap = in.softcap;
  out->mask = reader->broadcast("mask", in.mask);
  out->bias = reader->broadcast("bias", in.bias);
  out->alibi = reader->flag("alibi", in.alibi);
  out->alibi_per_batch = reader->flag("alibi_per_batch", in.alibi_per_batch);
  out->document_ids = reader->flag("document_ids", in.document_ids);
  out->block_mask = reader->flag("block_mask", in.block_mask);
  out->sinks = reader->flag("sinks", in.sinks);
  out->dropout_p = in.dropout_p;
}

void read_gradients(const rowmax_problem& in, FieldReader* reader, Gradients* out) {
  constexpr uint32_t kAll = 2 * ROWMAX_DLSE - 1;
  if (in.gradients > kAll) {
    reader->fail(fmt::format("gradients: is {:#x}; accepted: bits of {:#x}", in.gradients, kAll));
  }
  const auto has = [&](uint32_t bit) { return (in.gradients & bit) != 0; };
  *out = {has(ROWMAX_DQ),     has(ROWMAX_DK),      has(ROWMAX_DV),  has(ROWMAX_DBIAS),
          has(ROWMAX_DSINKS), has(ROWMAX_DSLOPES), has(ROWMAX_DLSE)};
}

rowmax_broadcast broadcast_to_c(const BroadcastShape& in) {
  return {in.present, static_cast<rowmax_dtype>(in.dtype), in.batch, in.heads, in.rows, in.cols};
}

uint32_t gradient_bits(const Gradients& g) {
  const auto bit = [](bool wanted, uint32_t value) { return wanted ? value : 0u; };
  return bit(g.dq, ROWMAX_DQ) | bit(g.dk, ROWMAX_DK) | bit(g.dv, ROWMAX_DV) |
         bit(g.dbias, ROWMAX_DBIAS) | bit(g.dsinks, ROWMAX_DSINKS) |
         bit(g.dslopes, ROWMAX_DSLOPES) | bit(g.dlse, ROWMAX_DLSE);
}

struct NamedTensor {
  const char* name;
  const rowmax_tensor* in;
  ConstTensorView* input;  // one of the two
  TensorView* output;
};

template <class View>
void copy_view(const rowmax_tensor& in, View* out) {
  out->data = in.data;
  out->dtype = static_cast<DType>(in.dtype);
  out->rank = in.rank;
  std::copy(in.sizes, in.sizes + kMaxRank, out->sizes);
  std::copy(in.strides, in.strides + kMaxRank, out->strides);
}

}  // namespace

Status check_struct_size(const char* name, size_t size, std::initializer_list<size_t> sizes) {
  const size_t known_size = *(sizes.end() - 1);
  if (size < known_size && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
    return Status::invalid(fmt::format("{}.struct_size: is {}; accepted: {} (sizeof the struct)",
                                       name, size, fmt::join(sizes, ", ")));
  }
  if (size > kMostStructBytes) {
    return Status::invalid(
        fmt::format("{}.struct_size: is {}; accepted: sizeof the struct, at most {}", name, size,
                    kMostStructBytes));
  }
  return {};
}

Status read_versioned(const char* name, const void* in, void* out,
                      std::initializer_list<size_t> sizes) {
  if (in == nullptr) {
    return Status::invalid(fmt::format("{}: null; accepted: a pointer to a struct", name));
  }
  size_t size = 0;
  std::memcpy(&size, in, sizeof(size));
  if (Status status = check_struct_size(name, size, sizes); !status.ok()) {
    return status;
  }
  const size_t known_size = *(sizes.end() - 1);
  const char* bytes = static_cast<const char*>(in);
  for (size_t i = known_size; i < size; ++i) {
    if (bytes[i] != 0) {
      return Status::invalid(fmt::format(
          "{}.struct_size: is {}, and byte {} is not zero; this library knows {} bytes; "
          "accepted: zeros past them",
          name, size, i, known_size));
    }
  }
  std::memset(out, 0, known_size);
  std::memcpy(out, in, std::min(size, known_size));
  return {};
}

Result<AttentionProblem> problem_from_c(const rowmax_problem& in) {
  FieldReader reader;
  AttentionProblem out;
  out.op = static_cast<Op>(reader.enumerator("op", in.op, ROWMAX_BACKWARD));
  out.dtype = reader.dtype("dtype", in.dtype);
  out.out_dtype = reader.dtype("out_dtype", in.out_dtype);
  out.sizes = {in.batch,    in.heads_q,  in.heads_kv,  in.seqlen_q,
               in.seqlen_k, in.head_dim, in.head_dim_v};
  out.storage.query = static_cast<Source>(reader.enumerator("source_q", in.source_q, ROWMAX_PAGED));
  out.storage.key = static_cast<Source>(reader.enumerator("source_k", in.source_k, ROWMAX_PAGED));
  out.storage.total_q = in.total_q;
  out.storage.total_k = in.total_k;
  out.storage.page_size = in.page_size;
  out.storage.num_pages = in.num_pages;
  out.storage.max_pages = in.max_pages;
  out.storage.seqused_q = reader.flag("seqused_q", in.seqused_q);
  out.storage.seqused_k = reader.flag("seqused_k", in.seqused_k);
  if (reader.flag("left_bounded", in.left_bounded)) {
    out.band.left = Bound::at(in.band_left);
  }
  if (reader.flag("right_bounded", in.right_bounded)) {
    out.band.right = Bound::at(in.band_right);
  }
  out.band.alignment =
      static_cast<Alignment>(reader.enumerator("alignment", in.alignment, ROWMAX_TOP_LEFT));
  read_score(in, &reader, &out.score);
  out.lse = reader.flag("lse", in.lse);
  out.batch_invariant = reader.flag("batch_invariant", in.batch_invariant);
  if (out.op == Op::kBackward) {
    read_gradients(in, &reader, &out.gradients);
  }
  if (!reader.status().ok()) {
    return reader.status();
  }
  return out;
}

rowmax_problem problem_to_c(const AttentionProblem& in) {
  rowmax_problem out = {};
  out.struct_size = sizeof(out);
  out.op = static_cast<int32_t>(in.op);
  out.dtype = static_cast<rowmax_dtype>(in.dtype);
  out.out_dtype = static_cast<rowmax_dtype>(in.out_dtype);
  out.alignment = static_cast<int32_t>(in.band.alignment);
  out.batch = in.sizes.batch;
  out.heads_q = in.sizes.heads_q;
  out.heads_kv = in.sizes.heads_kv;
  out.seqlen_q = in.sizes.seqlen_q;
  out.seqlen_k = in.sizes.seqlen_k;
  out.head_dim = in.sizes.head_dim;
  out.head_dim_v = in.sizes.head_dim_v;
  out.source_q = static_cast<int32_t>(in.storage.query);
  out.source_k = static_cast<int32_t>(in.storage.key);
  out.total_q = in.storage.total_q;
  out.total_k = in.storage.total_k;
  out.page_size = in.storage.page_size;
  out.num_pages = in.storage.num_pages;
  out.max_pages = in.storage.max_pages;
  out.seqused_q = in.storage.seqused_q;
  out.seqused_k = in.storage.seqused_k;
  out.left_bounded = in.band.left.bounded();
  out.right_bounded = in.band.right.bounded();
  out.band_left = in.band.left.value();
  out.band_right = in.band.right.value();
  out.scale = in.score.scale;
  out.softcap = in.score.softcap;
  out.mask = broadcast_to_c(in.score.mask);
  out.bias = broadcast_to_c(in.score.bias);
  out.alibi = in.score.alibi;
  out.alibi_per_batch = in.score.alibi_per_batch;
  out.document_ids = in.score.document_ids;
  out.block_mask = in.score.block_mask;
  out.sinks = in.score.sinks;
  out.lse = in.lse;
  out.dropout_p = in.score.dropout_p;
  out.gradients = gradient_bits(in.gradients);
  out.batch_invariant = in.batch_invariant;
  return out;
}

Result<AttentionTensors> tensors_from_c(const rowmax_tensors& in) {
  AttentionTensors out;
  LengthTensors& lengths = out.lengths;
  ScoreTensors& score = out.score;
  GradientTensors& grad = out.grad;
  const NamedTensor tensors[] = {
      {"q", &in.q, &out.q, nullptr},
      {"k", &in.k, &out.k, nullptr},
      {"v", &in.v, &out.v, nullptr},
      {"out", &in.out, nullptr, &out.out},
      {"lse", &in.lse, nullptr, &out.lse},
      {"cu_seqlens_q", &in.cu_seqlens_q, &lengths.cu_seqlens_q, nullptr},
      {"cu_seqlens_k", &in.cu_seqlens_k, &lengths.cu_seqlens_k, nullptr},
      {"seqused_q", &in.seqused_q, &lengths.seqused_q, nullptr},
      {"seqused_k", &in.seqused_k, &lengths.seqused_k, nullptr},
      {"block_table", &in.block_table, &lengths.block_table, nullptr},
      {"mask", &in.mask, &score.mask, nullptr},
      {"bias", &in.bias, &score.bias, nullptr},
      {"slopes", &in.slopes, &score.slopes, nullptr},
      {"documents_q", &in.documents_q, &score.documents_q, nullptr},
      {"documents_k", &in.documents_k, &score.documents_k, nullptr},
      {"sinks", &in.sinks, &score.sinks, nullptr},
      {"dout", &in.dout, &grad.dout, nullptr},
      {"dlse", &in.dlse, &grad.dlse, nullptr},
      {"dq", &in.dq, nullptr, &grad.dq},
      {"dk", &in.dk, nullptr, &grad.dk},
      {"dv", &in.dv, nullptr, &grad.dv},
      {"dbias", &in.dbias, nullptr, &grad.dbias},
      {"dsinks", &in.dsinks, nullptr, &grad.dsinks},
      {"dslopes", &in.dslopes, nullptr, &grad.dslopes},
  };
  FieldReader reader;
  for (const NamedTensor& tensor : tensors) {
    reader.dtype(tensor.name, tensor.in->dtype);
    reader.enumerator(tensor.name, tensor.in->rank, kMaxRank);
    if (tensor.input != nullptr) {
      copy_view(*tensor.in, tensor.input);
    } else {
      copy_view(*tensor.in, tensor.output);
    }
  }
  if (!reader.status().ok()) {
    return reader.status();
  }
  out.dropout = {in.dropout_seed, in.dropout_offset, in.dropout_state, in.dropout_row_base,
                 in.dropout_col_base};
  return out;
}

}  // namespace rowmax
