// Binding: every refusal by the argument's name, and what must be accepted.
#include "api/bind.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "api_fixture.h"

namespace rowmax {
namespace {

using testing::problem_of;
using testing::TensorSet;

constexpr const char* kForward = "forward f32 b2 hq4 hkv2 sq5 sk7 d8 dv6";
constexpr const char* kRagged = "forward f32 b2 h2 sq5 sk7 d8 ragged_q=10 ragged_k=14";
constexpr const char* kPaged = "forward f32 b2 h2 sq1 sk10 d8 paged=4,6,3 used_k";
constexpr const char* kScores =
    "forward f32 b2 h2 sq5 sk7 d8 mask=brc bias=f16:hrc alibi documents sinks used_q used_k";

// The message must start with the argument's name, say what was wrong, and what is accepted.
void expect_refused(const TensorSet& set, const std::string& name, const std::string& text) {
  const Result<AttentionArgs> args = bind_arguments(set.problem, set.tensors);
  ASSERT_FALSE(args.ok()) << "accepted, although " << name << " is wrong";
  EXPECT_EQ(args.status().code(), StatusCode::kInvalidArgument);
  const std::string& message = args.status().message();
  EXPECT_EQ(message.rfind(name, 0), 0u) << message;
  EXPECT_NE(message.find(text), std::string::npos) << message;
  EXPECT_NE(message.find("accepted: "), std::string::npos) << message;
}

AttentionArgs expect_bound(const TensorSet& set) {
  const Result<AttentionArgs> args = bind_arguments(set.problem, set.tensors);
  EXPECT_TRUE(args.ok()) << args.status().message();
  return args.ok() ? *args : AttentionArgs();
}

template <class View>
void set_i32(const View& view, int64_t index, int32_t value) {
  static_cast<int32_t*>(const_cast<void*>(static_cast<const void*>(view.data)))[index] = value;
}

// ---- what is accepted -----------------------------------------------------------------------

TEST(Bind, ContiguousForward) {
  const TensorSet set(problem_of(kForward));
  const AttentionArgs args = expect_bound(set);
  EXPECT_EQ(args.q.data, set.tensors.q.data);
  EXPECT_EQ(args.q.batch, 5 * 4 * 8);
  EXPECT_EQ(args.q.seq, 4 * 8);
  EXPECT_EQ(args.q.head, 8);
  EXPECT_EQ(args.v.batch, 7 * 2 * 6);
  EXPECT_EQ(args.lse.batch, 4 * 5);
  EXPECT_EQ(args.lse.head, 5);
  EXPECT_EQ(args.lse.seq, 1);
  EXPECT_FALSE(args.dropout.on);
  EXPECT_DOUBLE_EQ(args.score.scale, set.problem.effective_scale());
}

TEST(Bind, EveryFeature) {
  for (const char* text :
       {kForward, kRagged, kPaged, kScores, "forward f64 b1 h1 s3 d4", "forward bf16 b0 h2 s3 d4",
        "forward f32 b2 h2 sq0 sk7 d8", "forward f32 b2 h2 sq5 sk0 d8",
        "forward f32 b16 h1 sq1 sk0 d8 paged=64,0,0 used_k",
        "backward f32 b2 h2 sq5 sk7 d8 bias=f32:c alibi=batch sinks "
        "grads=dq,dk,dv,dbias,dsinks,dslopes "
        "dlse",
        "backward f16 b2 h2 sq5 sk7 d8 grads=dv"}) {
    SCOPED_TRACE(text);
    expect_bound(TensorSet(problem_of(text)));
  }
}

TEST(Bind, RaggedHasNoBatchStride) {
  const AttentionArgs args = expect_bound(TensorSet(problem_of(kRagged)));
  EXPECT_EQ(args.q.batch, 0);
  EXPECT_EQ(args.q.seq, 2 * 8);
  EXPECT_EQ(args.lse.batch, 0);
  EXPECT_EQ(args.lse.head, 10);
  EXPECT_EQ(args.sequence.total_k, 14);
}

TEST(Bind, PagedStrides) {
  const AttentionArgs args = expect_bound(TensorSet(problem_of(kPaged)));
  EXPECT_EQ(args.k.batch, 4 * 2 * 8);
  EXPECT_EQ(args.k.seq, 2 * 8);
  EXPECT_EQ(args.sequence.table_stride, 3);
  EXPECT_EQ(args.sequence.page_size, 4);
  // A table without columns still says that keys are paged (BC-069).
  const TensorSet empty(problem_of("forward f32 b16 h1 sq1 sk0 d8 paged=64,1,0 used_k"));
  EXPECT_NE(expect_bound(empty).sequence.block_table, nullptr);
}

// BC-080.
TEST(Bind, StridesOfSizeOneAxesAreIgnored) {
  TensorSet set(problem_of("forward f32 b1 h1 sq2 sk1 d1"));
  set.tensors.q.strides[0] = std::numeric_limits<int64_t>::max();
  set.tensors.q.strides[2] = -77;
  set.tensors.q.strides[3] = 2;
  set.tensors.out.strides[3] = 0;
  set.tensors.k.strides[1] = 5;
  const AttentionArgs args = expect_bound(set);
  EXPECT_EQ(args.q.batch, 0);
  EXPECT_EQ(args.q.head, 0);
  EXPECT_EQ(args.k.seq, 0);
}

TEST(Bind, BroadcastKeysAndNegativeStrides) {
  TensorSet set(problem_of(kForward));
  set.tensors.k.strides[2] = 0;  // all heads share one (BC-081)
  set.tensors.v.strides[0] = 0;
  // Rows of q from last to first.
  set.tensors.q.data = static_cast<const float*>(set.tensors.q.data) + 4 * 32;
  set.tensors.q.strides[1] = -32;
  const AttentionArgs args = expect_bound(set);
  EXPECT_EQ(args.k.head, 0);
  EXPECT_EQ(args.q.seq, -32);
}

TEST(Bind, MasksAndBiasesOfFewerAxes) {
  TensorSet set(problem_of("forward f32 b2 h2 sq5 sk7 d8 mask=rc bias=f32:-"));
  ConstTensorView& mask = set.tensors.score.mask;
  mask = contiguous(mask.data, DType::kBool, {5, 7});
  set.tensors.score.bias = contiguous(set.tensors.score.bias.data, DType::kF32, {});
  const AttentionArgs args = expect_bound(set);
  EXPECT_EQ(args.score.mask.row, 7);
  EXPECT_EQ(args.score.mask.col, 1);
  EXPECT_EQ(args.score.mask.batch, 0);
  EXPECT_TRUE(args.score.mask.full_rows);
  EXPECT_EQ(args.score.bias.col, 0);
}

// dQ, dK and dV may be slices of one buffer, as q, k and v may.
TEST(Bind, SlicesOfOneBufferDoNotOverlap) {
  TensorSet set(problem_of("backward f32 b2 h2 s5 d8"));
  auto* gradients = static_cast<float*>(set.allocate(2 * 5 * 3 * 16 * sizeof(float)));
  TensorView* views[] = {&set.tensors.grad.dq, &set.tensors.grad.dk, &set.tensors.grad.dv};
  for (int i = 0; i < 3; ++i) {
    *views[i] = contiguous(gradients + 16 * i, DType::kF32, {2, 5, 2, 8});
    views[i]->strides[0] = 5 * 48;
    views[i]->strides[1] = 48;
  }
  expect_bound(set);
  views[2]->data = gradients + 31;
  expect_refused(set, "dv", "shares memory with dk");
}

TEST(Bind, DropoutThreshold) {
  TensorSet set(problem_of("forward f32 b1 h1 s4 d8 dropout=0.25"));
  set.tensors.dropout.seed = 7;
  set.tensors.dropout.offset = 9;
  AttentionArgs args = expect_bound(set);
  EXPECT_TRUE(args.dropout.on);
  EXPECT_EQ(args.dropout.threshold, uint64_t{1} << 30);
  EXPECT_FLOAT_EQ(args.dropout.keep_scale, 4.0f / 3.0f);
  EXPECT_EQ(args.dropout.seed, 7u);
  const uint64_t state[2] = {11, 13};
  set.tensors.dropout.device_state = state;
  args = expect_bound(set);
  EXPECT_EQ(args.dropout.seed, 11u);
  EXPECT_EQ(args.dropout.offset, 13u);

  const TensorSet all(problem_of("forward f32 b1 h1 s4 d8 dropout=1"));
  args = expect_bound(all);
  EXPECT_EQ(args.dropout.threshold, uint64_t{1} << 32);
  EXPECT_EQ(args.dropout.keep_scale, 0.0f);
}

// BC-115, BC-118: whatever lies past the pages in use is not looked at.
TEST(Bind, TailsOfLengthsAndTablesAreNotLookedAt) {
  TensorSet set(problem_of(kPaged));
  set_i32(set.tensors.lengths.seqused_k, 0, 4);
  set_i32(set.tensors.lengths.seqused_k, 1, 0);
  set_i32(set.tensors.lengths.block_table, 1, -1);
  set_i32(set.tensors.lengths.block_table, 2, 1 << 30);
  set_i32(set.tensors.lengths.block_table, 3, -5);
  expect_bound(set);
  set_i32(set.tensors.lengths.seqused_k, 0, 5);
  expect_refused(set, "block_table[0][1]", "page is -1");
}

// ---- shapes, types, strides, pointers -------------------------------------------------------

TEST(Bind, RanksSizesAndTypes) {
  struct Case {
    const char* problem;
    const char* name;
    ConstTensorView* (*input)(AttentionTensors& t);
  };
  const Case cases[] = {
      {kForward, "q", [](AttentionTensors& t) { return &t.q; }},
      {kForward, "k", [](AttentionTensors& t) { return &t.k; }},
      {kForward, "v", [](AttentionTensors& t) { return &t.v; }},
      {kRagged, "cu_seqlens_q", [](AttentionTensors& t) { return &t.lengths.cu_seqlens_q; }},
      {kRagged, "cu_seqlens_k", [](AttentionTensors& t) { return &t.lengths.cu_seqlens_k; }},
      {kScores, "seqused_q", [](AttentionTensors& t) { return &t.lengths.seqused_q; }},
      {kScores, "seqused_k", [](AttentionTensors& t) { return &t.lengths.seqused_k; }},
      {kPaged, "block_table", [](AttentionTensors& t) { return &t.lengths.block_table; }},
      {kScores, "mask", [](AttentionTensors& t) { return &t.score.mask; }},
      {kScores, "bias", [](AttentionTensors& t) { return &t.score.bias; }},
      {kScores, "slopes", [](AttentionTensors& t) { return &t.score.slopes; }},
      {kScores, "documents_q", [](AttentionTensors& t) { return &t.score.documents_q; }},
      {kScores, "documents_k", [](AttentionTensors& t) { return &t.score.documents_k; }},
      {kScores, "sinks", [](AttentionTensors& t) { return &t.score.sinks; }},
      {"backward f32 b2 h2 sq5 sk7 d8", "dout", [](AttentionTensors& t) { return &t.grad.dout; }},
      {"backward f32 b2 h2 sq5 sk7 d8 dlse", "dlse",
       [](AttentionTensors& t) { return &t.grad.dlse; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const TensorSet good(problem_of(c.problem));
    TensorSet set(problem_of(c.problem));
    ConstTensorView& view = *c.input(set.tensors);
    const ConstTensorView original = view;
    const std::string name = std::string(c.name) + ":";

    view = {};
    expect_refused(set, name, "absent");
    view = original;
    view.data = nullptr;
    expect_refused(set, name, "data is null");
    view = original;
    view.rank = 5;
    expect_refused(set, name, "rank is 5");
    view = original;
    view.sizes[view.rank - 1] += 1;
    expect_refused(set, name, "sizes are");
    view = original;
    view.dtype = view.dtype == DType::kBF16 ? DType::kF32 : DType::kBF16;
    expect_refused(set, name, "dtype is");
    view = original;
    view.strides[view.rank - 1] = 2;
    expect_refused(set, name, "innermost stride is 2");
    view = original;
    if (size_of(view.dtype) > 1) {
      view.data = static_cast<const char*>(view.data) + 1;
      expect_refused(set, name, "is not a multiple of");
    }
    view = original;
    expect_bound(set);
  }
}

TEST(Bind, OutputsRanksSizesAndTypes) {
  struct Case {
    const char* problem;
    const char* name;
    TensorView* (*output)(AttentionTensors& t);
  };
  constexpr const char* kBackward =
      "backward f32 b2 h2 sq5 sk7 d8 bias=f32:bhrc alibi=batch sinks "
      "grads=dq,dk,dv,dbias,dsinks,dslopes";
  const Case cases[] = {
      {kForward, "out", [](AttentionTensors& t) { return &t.out; }},
      {kForward, "lse", [](AttentionTensors& t) { return &t.lse; }},
      {kBackward, "dq", [](AttentionTensors& t) { return &t.grad.dq; }},
      {kBackward, "dk", [](AttentionTensors& t) { return &t.grad.dk; }},
      {kBackward, "dv", [](AttentionTensors& t) { return &t.grad.dv; }},
      {kBackward, "dbias", [](AttentionTensors& t) { return &t.grad.dbias; }},
      {kBackward, "dsinks", [](AttentionTensors& t) { return &t.grad.dsinks; }},
      {kBackward, "dslopes", [](AttentionTensors& t) { return &t.grad.dslopes; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TensorSet set(problem_of(c.problem));
    TensorView& view = *c.output(set.tensors);
    const TensorView original = view;
    const std::string name = std::string(c.name) + ":";

    view = {};
    expect_refused(set, name, "absent");
    view = original;
    view.data = nullptr;
    expect_refused(set, name, "data is null");
    view = original;
    view.sizes[0] += 1;
    expect_refused(set, name, "sizes are");
    view = original;
    view.dtype = DType::kI32;
    expect_refused(set, name, "dtype is i32");
    view = original;
    view.data = static_cast<char*>(view.data) + 2;
    expect_refused(set, name, "is not a multiple of 4 bytes");
    view = original;
    view.strides[view.rank - 1] = 0;
    expect_refused(set, name, "innermost stride is 0");
    view = original;
    if (view.rank > 1) {
      view.strides[0] = 0;
      expect_refused(set, name, "share memory");
      view.strides[0] = view.strides[1];
      expect_refused(set, name, "share memory");
    }
    // Outputs on top of an input.
    view = original;
    view.data = const_cast<void*>(set.tensors.k.data);
    expect_refused(set, name, "shares memory with k");
    view = original;
    expect_bound(set);
  }
}

TEST(Bind, OutputsOnTopOfEachOther) {
  TensorSet set(problem_of("forward f32 b1 h1 s4 d8"));
  set.tensors.lse.data = static_cast<float*>(set.tensors.out.data) + 31;
  expect_refused(set, "lse:", "shares memory with out");
}

TEST(Bind, OutputsInTheGapsOfAnInput) {
  TensorSet set(problem_of("forward f32 b2 h1 s4 d8"));
  auto* buffer = static_cast<float*>(set.allocate(2 * 64 * sizeof(float)));
  set.tensors.q = contiguous(buffer, DType::kF32, {2, 4, 1, 8});
  set.tensors.q.strides[0] = 64;
  set.tensors.out = contiguous(buffer + 32, DType::kF32, {2, 4, 1, 8});
  set.tensors.out.strides[0] = 64;
  expect_bound(set);
  set.tensors.out.data = buffer + 24;
  expect_refused(set, "out:", "shares memory with q");
  set.tensors.out.data = buffer + 40;
  expect_refused(set, "out:", "shares memory with q");
}

TEST(Bind, OutputsOnTopOfTheDropoutState) {
  TensorSet set(problem_of("forward f32 b2 h2 sq5 sk7 d8 dropout=0.5"));
  auto* out = static_cast<char*>(set.tensors.out.data);
  set.tensors.dropout.device_state = reinterpret_cast<const uint64_t*>(out + 16);
  expect_refused(set, "out:", "shares memory with dropout.device_state");
  alignas(8) const uint64_t state[2] = {1, 2};
  set.tensors.dropout.device_state = state;
  expect_bound(set);
}

// Inputs too: the workspace is written.
TEST(Bind, WorkspaceOnTopOfAnything) {
  TensorSet set(
      problem_of("backward f32 b2 h2 sq5 sk7 d8 alibi sinks dropout=0.5 dlse "
                 "grads=dq,dk,dv,dsinks,dslopes"));
  const uint64_t state[2] = {1, 2};
  set.tensors.dropout.device_state = state;
  const AttentionTensors& t = set.tensors;
  const std::pair<const char*, const void*> tensors[] = {{"q", t.q.data},
                                                         {"lse", t.lse.data},
                                                         {"slopes", t.score.slopes.data},
                                                         {"dropout.device_state", state},
                                                         {"dlse", t.grad.dlse.data},
                                                         {"dk", t.grad.dk.data},
                                                         {"dsinks", t.grad.dsinks.data}};
  for (const auto& [name, data] : tensors) {
    const Result<AttentionArgs> args = bind_arguments(set.problem, t, {data, 1});
    EXPECT_EQ(args.status().code(), StatusCode::kInvalidArgument) << name;
    const std::string expected = std::string("workspace: shares memory with ") + name + " (";
    EXPECT_EQ(args.status().message().rfind(expected, 0), 0u) << args.status().message();
    EXPECT_TRUE(bind_arguments(set.problem, t, {data, 0}).ok());
  }
}

TEST(Bind, OffsetsBeyond64Bits) {
  TensorSet set(problem_of(kForward));
  set.tensors.k.strides[1] = std::numeric_limits<int64_t>::max() / 3;
  expect_refused(set, "k:", "outside 64 bits");
  set.tensors.k.strides[1] = std::numeric_limits<int64_t>::max() / 16;
  expect_refused(set, "k:", "outside 64 bits");  // bytes, not elements
}

TEST(Bind, OutDtypeAndStatisticsOfF64) {
  TensorSet set(problem_of("forward f64 b1 h1 s3 d4"));
  set.tensors.lse.dtype = DType::kF32;
  expect_refused(set, "lse:", "accepted: f64");
}

// ---- tensors that the problem does not use ----------------------------------------------------

TEST(Bind, UnusedTensorsAreRefused) {
  const auto expect = [](const char* name, void (*give)(TensorSet & set, const TensorView& view)) {
    SCOPED_TRACE(name);
    TensorSet set(problem_of("forward f32 b1 h1 s4 d8 nolse"));
    give(set, set.view(DType::kF32, {4}));
    expect_refused(set, std::string(name) + ":", "given, but");
  };
  using Set = TensorSet;
  using View = TensorView;
  expect("lse", [](Set& s, const View& v) { s.tensors.lse = v; });
  expect("cu_seqlens_q", [](Set& s, const View& v) { s.tensors.lengths.cu_seqlens_q = v; });
  expect("cu_seqlens_k", [](Set& s, const View& v) { s.tensors.lengths.cu_seqlens_k = v; });
  expect("seqused_q", [](Set& s, const View& v) { s.tensors.lengths.seqused_q = v; });
  expect("seqused_k", [](Set& s, const View& v) { s.tensors.lengths.seqused_k = v; });
  expect("block_table", [](Set& s, const View& v) { s.tensors.lengths.block_table = v; });
  expect("mask", [](Set& s, const View& v) { s.tensors.score.mask = v; });
  expect("bias", [](Set& s, const View& v) { s.tensors.score.bias = v; });
  expect("slopes", [](Set& s, const View& v) { s.tensors.score.slopes = v; });
  expect("documents_q", [](Set& s, const View& v) { s.tensors.score.documents_q = v; });
  expect("documents_k", [](Set& s, const View& v) { s.tensors.score.documents_k = v; });
  expect("sinks", [](Set& s, const View& v) { s.tensors.score.sinks = v; });
  expect("dout", [](Set& s, const View& v) { s.tensors.grad.dout = v; });
  expect("dlse", [](Set& s, const View& v) { s.tensors.grad.dlse = v; });
  expect("dq", [](Set& s, const View& v) { s.tensors.grad.dq = v; });
  expect("dk", [](Set& s, const View& v) { s.tensors.grad.dk = v; });
  expect("dv", [](Set& s, const View& v) { s.tensors.grad.dv = v; });
  expect("dbias", [](Set& s, const View& v) { s.tensors.grad.dbias = v; });
  expect("dsinks", [](Set& s, const View& v) { s.tensors.grad.dsinks = v; });
  expect("dslopes", [](Set& s, const View& v) { s.tensors.grad.dslopes = v; });
}

TEST(Bind, GradientsThatAreNotWantedAreRefused) {
  TensorSet set(problem_of("backward f32 b1 h1 s4 d8 grads=dv"));
  set.tensors.grad.dk = set.view(DType::kF32, {1, 4, 1, 8});
  expect_refused(set, "dk:", "does not want this gradient");
}

// ---- lengths ------------------------------------------------------------------------------------

TEST(Bind, RaggedOffsets) {
  for (const bool keys : {false, true}) {
    TensorSet set(problem_of(kRagged));
    const LengthTensors& lengths = set.tensors.lengths;
    const ConstTensorView& cu = keys ? lengths.cu_seqlens_k : lengths.cu_seqlens_q;
    const std::string name = keys ? "cu_seqlens_k" : "cu_seqlens_q";
    const int32_t bound = keys ? 7 : 5;
    set_i32(cu, 0, 1);
    expect_refused(set, name + "[0]", "is 1");
    set_i32(cu, 0, 0);
    set_i32(cu, 1, -1);
    expect_refused(set, name + "[1]", "-1 is below");
    set_i32(cu, 1, 3);
    set_i32(cu, 2, 2);
    expect_refused(set, name + "[2]", "2 is below the offset before it, 3");
    set_i32(cu, 2, 2 * bound + 1);
    expect_refused(set, name + "[2]", "past the end");
    set_i32(cu, 1, bound + 1);
    set_i32(cu, 2, 2 * bound);
    expect_refused(set, name + ": sequence 0", "has length " + std::to_string(bound + 1));
    set_i32(cu, 1, 0);
    set_i32(cu, 2, bound);
    expect_bound(set);  // empty sequences and spare storage are legal
  }
}

TEST(Bind, Int64Lengths) {
  TensorSet set(problem_of(kRagged));
  auto* offsets = static_cast<int64_t*>(set.allocate(3 * sizeof(int64_t)));
  offsets[1] = 4;
  offsets[2] = 9;
  set.tensors.lengths.cu_seqlens_q = contiguous(offsets, DType::kI64, {3});
  EXPECT_TRUE(expect_bound(set).sequence.cu_q.is_int64);
  offsets[2] = int64_t{1} << 40;
  expect_refused(set, "cu_seqlens_q[2]", "1099511627776");
}

TEST(Bind, UsedLengths) {
  TensorSet set(problem_of(kScores));
  set_i32(set.tensors.lengths.seqused_q, 1, 6);
  expect_refused(set, "seqused_q[1]", "is 6");
  set_i32(set.tensors.lengths.seqused_q, 1, 5);
  set_i32(set.tensors.lengths.seqused_k, 0, -1);
  expect_refused(set, "seqused_k[0]", "is -1");

  TensorSet ragged(problem_of("forward f32 b2 h2 sq5 sk7 d8 ragged_q=8 ragged_k=14 used_q"));
  set_i32(ragged.tensors.lengths.seqused_q, 1, 5);  // the sequence has 4 rows
  expect_refused(ragged, "seqused_q[1]", "accepted: 0 to 4");
}

TEST(Bind, PagesOutsideThePool) {
  TensorSet set(problem_of(kPaged));
  set_i32(set.tensors.lengths.block_table, 5, 6);
  expect_refused(set, "block_table[1][2]", "page is 6; accepted: 0 to 5");
  set_i32(set.tensors.lengths.block_table, 5, -1);
  expect_refused(set, "block_table[1][2]", "page is -1");
}

TEST(Bind, DropoutState) {
  TensorSet set(problem_of("forward f32 b1 h1 s4 d8 dropout=0.5"));
  set.tensors.dropout.row_base = -1;
  expect_refused(set, "dropout.row_base", "is -1");
  set.tensors.dropout.row_base = 0;
  set.tensors.dropout.col_base = int64_t{1} << 33;
  expect_refused(set, "dropout.col_base", "is 8589934592");
  set.tensors.dropout.col_base = 0;
  const auto* bytes = static_cast<const char*>(set.allocate(32)) + 4;
  set.tensors.dropout.device_state = reinterpret_cast<const uint64_t*>(bytes);
  expect_refused(set, "dropout.device_state", "8 bytes");
}

}  // namespace
}  // namespace rowmax
