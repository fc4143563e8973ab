#include "testkit/fuzz.h"

#include <algorithm>
#include <cmath>

namespace rowmax::testkit {
namespace {

// Tiles of the CPU kernels; the fuzz has to cross their edges.
constexpr int64_t kTileRows = 528;
constexpr int64_t kTileKeys = 128;
constexpr double kSpanningShare = 0.4;  // of cases that cross both; some shrink below again
constexpr double kDecodeShare = 0.2;
constexpr double kRare = 0.12;  // of an option that is drawn independently

template <class T, size_t kCount>
T pick(Random* random, const T (&values)[kCount]) {
  return values[random->integer(0, static_cast<int64_t>(kCount) - 1)];
}

void draw_sizes(Random* random, AttentionProblem* p) {
  Sizes& s = p->sizes;
  const double kind = random->uniform();
  if (kind < kSpanningShare) {
    s.seqlen_q = random->integer(kTileRows + 1, kTileRows + 60);
    s.seqlen_k = random->integer(2 * kTileKeys + 1, 3 * kTileKeys + 40);
    s.batch = 1;
    s.heads_kv = random->integer(1, 2);
    s.heads_q = s.heads_kv;
    s.head_dim = random->integer(1, 24);
  } else if (kind < kSpanningShare + kDecodeShare) {
    s.seqlen_q = random->integer(1, 9);
    s.seqlen_k = random->integer(1, 2500);
    s.batch = random->integer(1, 4);
    s.heads_kv = random->integer(1, 3);
    s.heads_q = s.heads_kv * random->integer(1, 6);
    s.head_dim = random->integer(1, 140);
  } else {
    s.seqlen_q = random->chance(0.08) ? 0 : random->integer(1, 180);
    s.seqlen_k = random->chance(0.08) ? 0 : random->integer(1, 300);
    s.batch = random->chance(0.05) ? 0 : random->integer(1, 4);
    s.heads_kv = random->integer(1, 3);
    s.heads_q = s.heads_kv * random->integer(1, 4);
    s.head_dim = random->integer(1, random->chance(0.1) ? 576 : 96);
  }
  s.head_dim_v = random->chance(0.7) ? s.head_dim : random->integer(1, 2 * s.head_dim);
  s.head_dim_v = std::min<int64_t>(s.head_dim_v, 576);
}

// Smaller heads, then fewer of them, until the case is quick. Lengths stay: they cross the tiles.
void shrink(AttentionProblem* p) {
  Sizes& s = p->sizes;
  while (count_work(*p).flops / 2.0 > kFuzzWork) {
    if (s.head_dim > 8 || s.head_dim_v > 8) {
      s.head_dim = std::max<int64_t>(1, s.head_dim * 2 / 3);
      s.head_dim_v = std::max<int64_t>(1, s.head_dim_v * 2 / 3);
    } else if (s.batch > 1) {
      --s.batch;
    } else if (s.heads_q > s.heads_kv) {
      s.heads_q -= s.heads_kv;
    } else if (s.heads_kv > 1) {
      s.heads_q = s.heads_kv = 1;
    } else {
      s.head_dim = s.head_dim_v = 1;
      return;
    }
  }
}

Bound draw_bound(Random* random, int64_t length) {
  if (random->chance(0.25)) {
    return Bound::unbounded();
  }
  return Bound::at(random->integer(random->chance(0.15) ? -20 : 0, length + 10));
}

void draw_band(Random* random, AttentionProblem* p) {
  const double kind = random->uniform();
  if (kind < 0.3) {
    p->band = Band::causal();
  } else if (kind < 0.55) {
    p->band.left = draw_bound(random, p->sizes.seqlen_k);
    p->band.right = draw_bound(random, p->sizes.seqlen_k / 2);
  }
  if (random->chance(0.2)) {
    p->band.alignment = Alignment::kTopLeft;
  }
}

void draw_storage(Random* random, AttentionProblem* p) {
  Storage& t = p->storage;
  const Sizes& s = p->sizes;
  if (random->chance(0.2)) {
    t.query = Source::kRagged;
    t.total_q = random->integer(0, s.batch * s.seqlen_q + 5);
  }
  if (random->chance(0.2)) {
    t.key = Source::kRagged;
    t.total_k = random->integer(0, s.batch * s.seqlen_k + 5);
  } else if (p->op == Op::kForward && random->chance(0.2)) {
    constexpr int64_t kPageSizes[] = {1, 3, 16, 48, 64, 128, 200};
    t.key = Source::kPaged;
    t.page_size = pick(random, kPageSizes);
    t.max_pages = (s.seqlen_k + t.page_size - 1) / t.page_size + random->integer(0, 2);
    t.num_pages = s.batch * t.max_pages + random->integer(0, 3);
  }
  t.seqused_q = random->chance(kRare);
  t.seqused_k = t.key == Source::kPaged || random->chance(0.2);
}

BroadcastShape draw_shape(Random* random, DType dtype) {
  BroadcastShape shape;
  shape.present = true;
  shape.dtype = dtype;
  shape.batch = random->chance(0.5);
  shape.heads = random->chance(0.5);
  shape.rows = random->chance(0.6);
  shape.cols = random->chance(0.8);
  return shape;
}

void draw_score(Random* random, AttentionProblem* p) {
  ScoreOptions& score = p->score;
  constexpr DType kBiasTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  if (random->chance(0.15)) {
    score.mask = draw_shape(random, DType::kBool);
  }
  if (random->chance(0.2)) {
    score.bias = draw_shape(random, pick(random, kBiasTypes));
  }
  score.alibi = random->chance(0.15);
  score.alibi_per_batch = score.alibi && random->chance(0.4);
  score.document_ids = random->chance(kRare);
  score.sinks = random->chance(0.15);
  if (random->chance(0.15)) {
    constexpr double kCaps[] = {0.5, 5.0, 30.0};
    score.softcap = pick(random, kCaps);
  }
  if (random->chance(0.15)) {
    constexpr double kScales[] = {0.05, 0.3, 1.0, -0.2};
    score.scale = pick(random, kScales);
  }
  if (random->chance(0.15)) {
    constexpr double kRates[] = {0.1, 0.5, 0.9, 1.0};
    score.dropout_p = pick(random, kRates);
  }
}

void draw_outputs(Random* random, AttentionProblem* p) {
  p->batch_invariant = random->chance(kRare);
  if (p->op == Op::kForward) {
    p->lse = !random->chance(kRare);
    const bool half = p->dtype == DType::kBF16 || p->dtype == DType::kF16;
    p->out_dtype = half && random->chance(0.25) ? DType::kF32 : p->dtype;
    return;
  }
  Gradients& g = p->gradients;
  g.dq = random->chance(0.9);
  g.dk = random->chance(0.9);
  g.dv = random->chance(0.9);
  g.dbias = p->score.bias.present && random->chance(0.7);
  g.dsinks = p->score.sinks && random->chance(0.7);
  g.dslopes = p->score.alibi && random->chance(0.7);
  g.dlse = random->chance(0.4);
  if (!(g.dq || g.dk || g.dv || g.dbias || g.dsinks || g.dslopes)) {
    g.dv = true;
  }
}

const char* band_name(const Band& band) {
  if (band.is_full()) {
    return "band full";
  }
  return band.left == Bound::unbounded() && band.right == Bound::at(0) ? "band causal"
                                                                       : "band window";
}

// A valid case; some of its words may have no effect.
Case draw_case(Random* random) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  for (;;) {
    Case spec;
    AttentionProblem& p = spec.problem;
    p.op = random->chance(0.5) ? Op::kForward : Op::kBackward;
    p.dtype = pick(random, kTypes);
    p.out_dtype = p.dtype;
    draw_sizes(random, &p);
    draw_band(random, &p);
    draw_score(random, &p);
    draw_outputs(random, &p);
    shrink(&p);
    draw_storage(random, &p);
    spec.seed = random->bits() % 100000;
    if (random->chance(0.4)) {
      spec.inputs = static_cast<InputKind>(random->integer(1, kFiniteInputKindCount - 1));
    }
    if (random->chance(0.5)) {
      spec.strides = static_cast<StrideKind>(random->integer(1, kStrideKindCount - 1));
    }
    if (random->chance(0.4)) {
      spec.lengths = static_cast<LengthKind>(random->integer(1, kLengthKindCount - 1));
    }
    if (validate(p).ok()) {
      return spec;
    }
  }
}

}  // namespace

Case random_case(Random* random) {
  Case spec = draw_case(random);
  drop_idle_words(&spec);
  return spec;
}

Case random_gpu_case(Random* random) {
  constexpr int64_t kHeadDims[] = {8, 40, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256};
  constexpr StrideKind kStrides[] = {StrideKind::kContiguous, StrideKind::kFusedQkv,
                                     StrideKind::kBhsd, StrideKind::kBroadcastKv,
                                     StrideKind::kAligned};
  for (;;) {
    Case spec = draw_case(random);
    AttentionProblem& p = spec.problem;
    Sizes& s = p.sizes;
    if (p.op == Op::kBackward && random->chance(0.3)) {
      p.op = Op::kForward;
    }
    if (p.op == Op::kForward) {
      p.gradients = {};
    }
    p.gradients.dbias = p.gradients.dslopes = false;
    p.dtype = random->chance(0.5) ? DType::kBF16 : DType::kF16;
    p.out_dtype = p.dtype;
    s.head_dim = pick(random, kHeadDims);
    s.head_dim_v = random->chance(0.9) ? s.head_dim : pick(random, kHeadDims);
    s.seqlen_q = random->integer(random->chance(0.1) ? 0 : 1, 520);
    s.seqlen_k = random->integer(random->chance(0.1) ? 0 : 1, 900);
    p.score.mask = p.score.bias = {};
    p.score.document_ids = false;
    p.score.dropout_p = 0.0;
    if (p.op == Op::kBackward) {  // what its kernels serve so far
      p.dtype = p.out_dtype = DType::kBF16;
      s.head_dim = std::min<int64_t>(s.head_dim, 128);
      s.head_dim_v = std::min<int64_t>(s.head_dim_v, 128);
      p.score.softcap = 0.0;
      p.score.alibi = false;
    }
    p.storage = {};
    if (random->chance(0.3)) {
      p.storage.query = p.storage.key = Source::kRagged;
      p.storage.total_q = random->integer(0, s.batch * s.seqlen_q + 5);
      p.storage.total_k = random->integer(0, s.batch * s.seqlen_k + 5);
    }
    p.storage.seqused_q = random->chance(kRare);
    p.storage.seqused_k = random->chance(0.3);
    spec.strides = pick(random, kStrides);
    if (validate(p).ok()) {
      drop_idle_words(&spec);
      return spec;
    }
  }
}

bool spans_tiles(const AttentionProblem& problem) {
  return problem.sizes.batch > 0 && problem.sizes.seqlen_q > kTileRows &&
         problem.sizes.seqlen_k > 2 * kTileKeys;
}

std::vector<std::string> features_of(const Case& spec) {
  const AttentionProblem& p = spec.problem;
  const Sizes& s = p.sizes;
  std::vector<std::string> names = {p.op == Op::kForward ? "forward" : "backward",
                                    std::string("dtype ") + to_string(p.dtype), band_name(p.band),
                                    std::string("inputs ") + to_string(spec.inputs),
                                    std::string("strides ") + to_string(spec.strides)};
  const struct {
    bool present;
    const char* name;
  } features[] = {
      {spans_tiles(p), "spans tiles"},
      {s.seqlen_q <= 8, "decode rows"},
      {s.heads_q != s.heads_kv, "gqa"},
      {s.head_dim != s.head_dim_v, "head_dim_v"},
      {s.batch == 0 || s.seqlen_q == 0 || s.seqlen_k == 0, "empty sizes"},
      {p.band.alignment == Alignment::kTopLeft, "top left"},
      {p.storage.query == Source::kRagged, "ragged queries"},
      {p.storage.key == Source::kRagged, "ragged keys"},
      {p.storage.key == Source::kPaged, "paged keys"},
      {p.storage.seqused_q, "used query lengths"},
      {p.storage.seqused_k, "used key lengths"},
      {p.score.mask.present, "mask"},
      {p.score.bias.present, "bias"},
      {p.score.alibi, "alibi"},
      {p.score.document_ids, "documents"},
      {p.score.sinks, "sinks"},
      {p.score.softcap != 0.0, "softcap"},
      {p.score.scale != 0.0, "scale"},
      {p.score.dropout_p != 0.0, "dropout"},
      {p.batch_invariant, "batch invariant"},
      {!p.lse, "no lse"},
      {p.out_dtype != p.dtype, "f32 output"},
      {p.gradients.dbias, "dbias"},
      {p.gradients.dsinks, "dsinks"},
      {p.gradients.dslopes, "dslopes"},
      {p.gradients.dlse, "dlse"},
  };
  for (const auto& feature : features) {
    if (feature.present) {
      names.push_back(feature.name);
    }
  }
  return names;
}

const std::vector<std::string>& all_features() {
  static const std::vector<std::string> kAll = [] {
    std::vector<std::string> names = {"forward",
                                      "backward",
                                      "band full",
                                      "band causal",
                                      "band window",
                                      "spans tiles",
                                      "decode rows",
                                      "gqa",
                                      "head_dim_v",
                                      "empty sizes",
                                      "top left",
                                      "ragged queries",
                                      "ragged keys",
                                      "paged keys",
                                      "used query lengths",
                                      "used key lengths",
                                      "mask",
                                      "bias",
                                      "alibi",
                                      "documents",
                                      "sinks",
                                      "softcap",
                                      "scale",
                                      "dropout",
                                      "batch invariant",
                                      "no lse",
                                      "f32 output",
                                      "dbias",
                                      "dsinks",
                                      "dslopes",
                                      "dlse"};
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      names.push_back(std::string("dtype ") + to_string(dtype));
    }
    for (int kind = 0; kind < kFiniteInputKindCount; ++kind) {
      names.push_back(std::string("inputs ") + to_string(static_cast<InputKind>(kind)));
    }
    for (int kind = 0; kind < kStrideKindCount; ++kind) {
      names.push_back(std::string("strides ") + to_string(static_cast<StrideKind>(kind)));
    }
    return names;
  }();
  return kAll;
}

}  // namespace rowmax::testkit
