// Plans in CUDA graphs: replays follow the contents of memory, lengths included, and need nothing
// of the host any more.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device_case.h"

namespace rowmax::test {
namespace {

constexpr int kReplays = 50;
constexpr int kSeed = 11;

// Cases of one problem whose lengths differ, where it has lengths.
struct GraphCase {
  const char* problem;
  const char* lengths[3];
};

const GraphCase kCases[] = {
    {"forward bf16 b2 hq4 hkv2 sq300 sk400 d128 causal", {"", "", ""}},
    {"forward f16 b2 h3 s250 d64", {"", "", ""}},
    {"forward bf16 b1 h2 sq100 sk3000 d128", {"", "", ""}},
    // BC-049: captured with the bound, replayed with shorter sequences.
    {"forward bf16 b4 hq8 hkv2 sq1 sk2000 d128 used_k",
     {"klens=2000,2000,2000,2000", "klens=1,700,64,0", "klens=129,2000,3,1999"}},
    {"forward bf16 b3 hq4 hkv2 sq300 sk300 d64 ragged_q=600 ragged_k=700 causal",
     {"qlens=300,200,100 klens=300,300,100", "qlens=1,0,300 klens=7,300,300",
      "qlens=0,0,0 klens=0,0,0"}},
    {"backward bf16 b2 hq4 hkv2 sq300 sk300 d128 causal", {"", "", ""}},
    {"backward bf16 b3 hq4 hkv2 sq300 sk300 d64 ragged_q=600 ragged_k=700",
     {"qlens=300,200,100 klens=300,300,100", "qlens=1,0,300 klens=7,300,300",
      "qlens=0,0,0 klens=0,0,0"}},
    {"backward bf16 b3 h2 sq200 sk300 d128 used_q used_k causal",
     {"qlens=200,200,200 klens=300,300,300", "qlens=1,77,200 klens=300,0,5",
      "qlens=0,200,64 klens=300,299,64"}},
};

std::string text_of(const GraphCase& spec, int variant, int seed) {
  return std::string(spec.problem) + " " + spec.lengths[variant] + " seed" + std::to_string(seed);
}

bool same_types(const AttentionProblem& problem, const AttentionTensors& a,
                const AttentionTensors& b) {
  const std::vector<TensorPair> pairs = tensor_pairs(problem, a, b);
  return std::all_of(pairs.begin(), pairs.end(),
                     [](const TensorPair& pair) { return pair.a.dtype == pair.b.dtype; });
}

// Inputs of a variant that fit the tensors of another: the seed also draws the type of lengths.
std::unique_ptr<testkit::CaseInputs> inputs_like(const DeviceCase& spec,
                                                 const GraphCase& graph_case, int variant) {
  for (int seed = kSeed + variant;; seed += 3) {
    std::unique_ptr<testkit::CaseInputs> inputs = make_inputs(text_of(graph_case, variant, seed));
    if (same_types(spec.problem(), spec.host(), inputs->tensors())) {
      return inputs;
    }
  }
}

class Graphs : public DeviceTest {};

TEST_F(Graphs, BC137_ReplaysGiveTheBitsOfExecute) {
  for (const GraphCase& graph_case : kCases) {
    SCOPED_TRACE(graph_case.problem);
    DeviceCase spec(text_of(graph_case, 0, kSeed), device_);
    std::unique_ptr<testkit::CaseInputs> inputs[3];
    testkit::OutputValues eager[3];
    for (int n = 0; n < 3; ++n) {
      inputs[n] = inputs_like(spec, graph_case, n);
      spec.load(inputs[n].get());
      eager[n] = spec.run();
      spec.judge();
    }
    spec.load(inputs[0].get());
    spec.workspace.poison();
    const Stream stream;
    Graph graph(stream);
    graph.begin();
    const Status status = spec.enqueue(stream.get());
    graph.end();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(graph.nodes(), spec.plan.steps().size());
    for (int replay = 0; replay < kReplays; ++replay) {
      const int n = replay % 3;
      spec.load(inputs[n].get());
      graph.replay();
      EXPECT_EQ(different_outputs(eager[n], spec.fetch()), "") << "replay " << replay;
    }
  }
}

// What the host gave execute may go before the first replay.
TEST_F(Graphs, BC137_PlansAndArgumentsMayGoBeforeTheReplay) {
  for (const GraphCase& graph_case : kCases) {
    SCOPED_TRACE(graph_case.problem);
    DeviceCase spec(text_of(graph_case, 0, kSeed), device_);
    const testkit::OutputValues eager = spec.run();
    const Stream stream;
    Graph graph(stream);
    graph.begin();
    {
      auto plan = std::make_unique<Plan>(make_plan(spec.problem(), device_).value());
      auto tensors = std::make_unique<AttentionTensors>(spec.tensors);
      auto options = std::make_unique<ExecuteOptions>();
      options->stream = stream.get();
      const Status status =
          execute(*plan, *tensors, spec.workspace.data(), spec.workspace.bytes(), *options);
      EXPECT_TRUE(status.ok()) << status.message();
      *plan = Plan();
      std::memset(static_cast<void*>(tensors.get()), 0xFF, sizeof(AttentionTensors));
    }
    graph.end();
    spec.load();
    graph.replay();
    EXPECT_EQ(different_outputs(eager, spec.fetch()), "");
  }
}

// Forward and backward in one graph, one workspace: what a training step captures.
TEST_F(Graphs, BC137_AStepOfTwoPlans) {
  DeviceCase forward("forward bf16 b2 hq4 hkv2 s300 d128 causal seed3", device_);
  DeviceCase backward("backward bf16 b2 hq4 hkv2 s300 d128 causal seed3", device_);
  backward.tensors.q = forward.tensors.q;
  backward.tensors.k = forward.tensors.k;
  backward.tensors.v = forward.tensors.v;
  backward.tensors.out = forward.tensors.out;
  backward.tensors.lse = forward.tensors.lse;
  DeviceBuffer workspace(std::max(forward.workspace.bytes(), backward.workspace.bytes()));
  const auto step = [&](cudaStream_t stream) {
    ExecuteOptions options;
    options.stream = stream;
    for (const DeviceCase* part : {&forward, &backward}) {
      const Status status =
          execute(part->plan, part->tensors, workspace.data(), workspace.bytes(), options);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  };
  const Stream stream;
  step(stream.get());
  stream.wait();
  const testkit::OutputValues gradients = backward.fetch();
  Graph graph(stream);
  graph.begin();
  step(stream.get());
  graph.end();
  for (int replay = 0; replay < kReplays; ++replay) {
    forward.load();
    backward.load();
    graph.replay();
    EXPECT_EQ(different_outputs(gradients, backward.fetch()), "") << "replay " << replay;
  }
}

}  // namespace
}  // namespace rowmax::test
