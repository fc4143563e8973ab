// The C ABI: struct versions, messages, and agreement with the C++ interface.
#include "rowmax/c_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api/c_problem.h"
#include "api_fixture.h"
#include "rowmax/rowmax.h"

namespace rowmax {
namespace {

using testing::problem_of;
using testing::TensorSet;
using testing::Workspace;

constexpr size_t kMessageBytes = 512;

struct Message {
  char text[kMessageBytes] = "?";
  std::string string() const { return text; }
};

void expect_refused(rowmax_status status, const Message& message, const std::string& name,
                    const std::string& text) {
  EXPECT_EQ(status, ROWMAX_INVALID_ARGUMENT);
  EXPECT_EQ(message.string().rfind(name, 0), 0u) << message.text;
  EXPECT_NE(message.string().find(text), std::string::npos) << message.text;
}

rowmax_problem parsed(const char* text) {
  rowmax_problem problem;
  rowmax_problem_init(&problem, sizeof(problem));
  Message message;
  EXPECT_EQ(rowmax_problem_parse(text, &problem, message.text, kMessageBytes), ROWMAX_OK)
      << message.text;
  return problem;
}

rowmax_plan* planned(const rowmax_problem& problem, const char* kernel) {
  rowmax_plan_options options = {};
  options.struct_size = sizeof(options);
  options.force_kernel = kernel;
  rowmax_plan* plan = nullptr;
  Message message;
  EXPECT_EQ(rowmax_plan_create(&problem, &options, &plan, message.text, kMessageBytes), ROWMAX_OK)
      << message.text;
  return plan;
}

rowmax_tensor tensor_of(const ConstTensorView& view) {
  rowmax_tensor tensor = {};
  tensor.data = const_cast<void*>(view.data);
  tensor.dtype = static_cast<rowmax_dtype>(view.dtype);
  tensor.rank = view.rank;
  std::copy(view.sizes, view.sizes + 4, tensor.sizes);
  std::copy(view.strides, view.strides + 4, tensor.strides);
  return tensor;
}

rowmax_tensors forward_tensors(const AttentionTensors& t) {
  rowmax_tensors tensors = {};
  tensors.struct_size = sizeof(tensors);
  tensors.q = tensor_of(t.q);
  tensors.k = tensor_of(t.k);
  tensors.v = tensor_of(t.v);
  tensors.out = tensor_of(t.out);
  tensors.lse = tensor_of(t.lse);
  return tensors;
}

TEST(CApi, VersionAndNames) {
  EXPECT_STREQ(rowmax_version(), ROWMAX_VERSION_STRING);
  for (int code = ROWMAX_OK; code <= ROWMAX_INTERNAL; ++code) {
    EXPECT_STREQ(rowmax_status_name(code), to_string(static_cast<StatusCode>(code)));
  }
  EXPECT_STREQ(rowmax_status_name(99), "unknown status");
}

TEST(CApi, DefaultsAreThoseOfCpp) {
  rowmax_problem problem;
  std::memset(static_cast<void*>(&problem), 0xAB, sizeof(problem));
  rowmax_problem_init(&problem, sizeof(problem));
  EXPECT_EQ(problem.struct_size, sizeof(problem));
  const Result<AttentionProblem> back = problem_from_c(problem);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == AttentionProblem());
}

TEST(CApi, ProblemsSurviveTheRoundTrip) {
  for (const char* text :
       {"forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal",
        "forward f32 b2 h2 sq1 sk10 d8 paged=4,6,3 used_k out=f32 invariant",
        "forward f16 b2 h2 s9 d8 dv6 ragged_q=10 ragged_k=14 used_q window=-3,inf topleft nolse",
        "backward f32 b2 h2 sq5 sk7 d8 mask=brc bias=f16:hrc alibi=batch documents sinks "
        "softcap=30 scale=0.25 dropout=0.1 grads=dq,dbias,dsinks,dslopes dlse"}) {
    SCOPED_TRACE(text);
    const AttentionProblem problem = problem_of(text);
    const rowmax_problem c = problem_to_c(problem);
    const Result<AttentionProblem> back = problem_from_c(c);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_TRUE(*back == problem);

    const rowmax_problem from_text = parsed(text);
    EXPECT_EQ(std::memcmp(&from_text, &c, sizeof(c)), 0);
    char out[256];
    size_t needed = 0;
    ASSERT_EQ(rowmax_problem_format(&c, out, sizeof(out), &needed, nullptr, 0), ROWMAX_OK);
    EXPECT_EQ(std::string(out), to_string(problem));
    EXPECT_EQ(needed, std::strlen(out) + 1);
  }
}

TEST(CApi, TextIsCutWithAFinalZero) {
  const rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  char out[8];
  size_t needed = 0;
  ASSERT_EQ(rowmax_problem_format(&problem, out, sizeof(out), &needed, nullptr, 0), ROWMAX_OK);
  EXPECT_STREQ(out, "forward");
  EXPECT_EQ(needed, sizeof("forward f32 b1 h1 s4 d8"));
  ASSERT_EQ(rowmax_problem_format(&problem, nullptr, 0, &needed, nullptr, 0), ROWMAX_OK);
  Message message;
  expect_refused(rowmax_problem_format(&problem, nullptr, 5, nullptr, message.text, kMessageBytes),
                 message, "text", "null");
}

TEST(CApi, MessagesAreCutAndMayBeAbsent) {
  rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  rowmax_plan* plan = nullptr;
  problem.heads_q = 0;
  char message[9] = "????????";
  EXPECT_EQ(rowmax_plan_create(&problem, nullptr, &plan, message, sizeof(message)),
            ROWMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(message, "heads_q ");
  EXPECT_EQ(rowmax_plan_create(&problem, nullptr, &plan, nullptr, 0), ROWMAX_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(rowmax_problem_parse("forward f32 b1 h1 s4 d8", &problem, message, sizeof(message)),
            ROWMAX_OK);
  EXPECT_STREQ(message, "");
}

TEST(CApi, LargerStructsMustEndInZeros) {
  struct Larger {
    rowmax_problem known;
    int64_t added;
  };
  Larger larger = {};
  rowmax_problem_init(&larger.known, sizeof(larger));
  EXPECT_EQ(larger.known.struct_size, sizeof(larger));
  rowmax_plan* plan = nullptr;
  rowmax_plan_options options = {};
  options.struct_size = sizeof(options);
  options.force_kernel = "reference_forward";
  Message message;
  EXPECT_EQ(rowmax_plan_create(&larger.known, &options, &plan, message.text, kMessageBytes),
            ROWMAX_OK)
      << message.text;
  rowmax_plan_destroy(plan);
  larger.added = int64_t{1} << 40;
  expect_refused(rowmax_plan_create(&larger.known, &options, &plan, message.text, kMessageBytes),
                 message, "problem.struct_size", "is not zero");
}

TEST(CApi, SmallerStructsMustBeKnown) {
  Message message;
  rowmax_plan* plan = nullptr;
  rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  problem.struct_size = sizeof(problem) - 8;
  expect_refused(rowmax_plan_create(&problem, nullptr, &plan, message.text, kMessageBytes), message,
                 "problem.struct_size", std::to_string(sizeof(problem)));
  expect_refused(
      rowmax_problem_parse("forward f32 b1 h1 s4 d8", &problem, message.text, kMessageBytes),
      message, "problem.struct_size", std::to_string(sizeof(problem)));
  problem.struct_size = 0;  // the caller forgot it (BC-135)
  expect_refused(rowmax_plan_create(&problem, nullptr, &plan, message.text, kMessageBytes), message,
                 "problem.struct_size", "is 0");

  // Of two versions the older one gets zeros for what it lacks.
  struct Versioned {
    size_t struct_size;
    int64_t first;
    int64_t second;
  };
  const Versioned older = {16, 7, -1};
  Versioned read = {0, -1, -1};
  ASSERT_TRUE(read_versioned("s", &older, &read, {16, 24}).ok());
  EXPECT_EQ(read.first, 7);
  EXPECT_EQ(read.second, 0);
  const Versioned unknown = {20, 7, 0};
  EXPECT_FALSE(read_versioned("s", &unknown, &read, {16, 24}).ok());
}

// A size that no struct has is refused before memory behind the struct is looked at.
TEST(CApi, HugeStructSizesAreRefused) {
  Message message;
  rowmax_plan* plan = nullptr;
  rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  const size_t huge = size_t{1} << 40;
  problem.struct_size = huge;
  expect_refused(rowmax_plan_create(&problem, nullptr, &plan, message.text, kMessageBytes), message,
                 "problem.struct_size", std::to_string(huge));
  expect_refused(
      rowmax_problem_parse("forward f32 b1 h1 s4 d8", &problem, message.text, kMessageBytes),
      message, "problem.struct_size", "65536");
  EXPECT_EQ(problem.struct_size, huge);
}

// The parser fills what the caller's struct has: a newer one ends in zeros.
TEST(CApi, ParseFillsALargerStruct) {
  struct Larger {
    rowmax_problem known;
    int64_t added;
    int64_t behind;
  };
  Larger larger = {};
  larger.known.struct_size = offsetof(Larger, behind);
  larger.added = -1;
  larger.behind = 5;
  Message message;
  ASSERT_EQ(
      rowmax_problem_parse("forward f32 b1 h3 s4 d8", &larger.known, message.text, kMessageBytes),
      ROWMAX_OK)
      << message.text;
  EXPECT_EQ(larger.known.struct_size, offsetof(Larger, behind));
  EXPECT_EQ(larger.known.heads_q, 3);
  EXPECT_EQ(larger.added, 0);
  EXPECT_EQ(larger.behind, 5);
}

TEST(CApi, ReservedPlanOptionsAreRefused) {
  const rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  for (const int field : {0, 1}) {
    rowmax_plan_options options = {};
    options.struct_size = sizeof(options);
    options.reserved[field] = 4;
    rowmax_plan* plan = nullptr;
    Message message;
    expect_refused(rowmax_plan_create(&problem, &options, &plan, message.text, kMessageBytes),
                   message, "options.reserved", "is 4");
  }
}

// A plan for a GPU that need not be here; options of headers before and after it had a device.
TEST(CApi, PlansForADeviceByName) {
  const rowmax_problem problem = parsed("forward bf16 b1 h2 s256 d64");
  rowmax_plan_options options = {};
  options.struct_size = sizeof(options);
  options.device = "h200";
  rowmax_plan* plan = nullptr;
  Message message;
  ASSERT_EQ(rowmax_plan_create(&problem, &options, &plan, message.text, kMessageBytes), ROWMAX_OK)
      << message.text;
  EXPECT_EQ(std::string(rowmax_plan_kernel(plan)).rfind("sm90_forward_bf16_", 0), 0u)
      << rowmax_plan_kernel(plan);
  rowmax_plan_destroy(plan);

  options.device = "h300";
  expect_refused(rowmax_plan_create(&problem, &options, &plan, message.text, kMessageBytes),
                 message, "device is 'h300'", "h200");
  options.struct_size = offsetof(rowmax_plan_options, device);
  ASSERT_EQ(rowmax_plan_create(&problem, &options, &plan, message.text, kMessageBytes), ROWMAX_OK)
      << message.text;
  EXPECT_EQ(std::string(rowmax_plan_kernel(plan)).rfind("sm90", 0), std::string::npos);
  rowmax_plan_destroy(plan);
}

TEST(CApi, FieldsOutOfRange) {
  const auto expect = [](const char* name, void (*spoil)(rowmax_problem & p)) {
    SCOPED_TRACE(name);
    rowmax_problem problem = parsed("backward f32 b1 h1 s4 d8 mask=rc");
    spoil(problem);
    Message message;
    rowmax_plan* plan = nullptr;
    expect_refused(rowmax_plan_create(&problem, nullptr, &plan, message.text, kMessageBytes),
                   message, std::string(name) + ":", "accepted: ");
  };
  expect("op", [](rowmax_problem& p) { p.op = 2; });
  expect("dtype", [](rowmax_problem& p) { p.dtype = 7; });
  expect("out_dtype", [](rowmax_problem& p) { p.out_dtype = -1; });
  expect("source_q", [](rowmax_problem& p) { p.source_q = 3; });
  expect("source_k", [](rowmax_problem& p) { p.source_k = -1; });
  expect("alignment", [](rowmax_problem& p) { p.alignment = 2; });
  expect("left_bounded", [](rowmax_problem& p) { p.left_bounded = 2; });
  expect("right_bounded", [](rowmax_problem& p) { p.right_bounded = -1; });
  expect("seqused_q", [](rowmax_problem& p) { p.seqused_q = 2; });
  expect("mask", [](rowmax_problem& p) { p.mask.dtype = 9; });
  expect("bias", [](rowmax_problem& p) { p.bias.present = 4; });
  expect("sinks", [](rowmax_problem& p) { p.sinks = 2; });
  expect("lse", [](rowmax_problem& p) { p.lse = 2; });
  expect("gradients", [](rowmax_problem& p) { p.gradients = 128; });
  expect("batch_invariant", [](rowmax_problem& p) { p.batch_invariant = 2; });
}

TEST(CApi, NullPointersAreRefused) {
  Message m;
  const rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  rowmax_problem out = problem;
  rowmax_plan* plan = nullptr;
  const rowmax_state state = {};
  expect_refused(rowmax_problem_parse(nullptr, &out, m.text, kMessageBytes), m, "text", "null");
  expect_refused(rowmax_problem_parse("x", nullptr, m.text, kMessageBytes), m, "problem", "null");
  expect_refused(rowmax_plan_create(nullptr, nullptr, &plan, m.text, kMessageBytes), m, "problem",
                 "null");
  expect_refused(rowmax_plan_create(&problem, nullptr, nullptr, m.text, kMessageBytes), m, "plan",
                 "null");
  expect_refused(rowmax_plan_explain(nullptr, nullptr, 0, nullptr, m.text, kMessageBytes), m,
                 "plan", "null");
  expect_refused(rowmax_execute(nullptr, nullptr, nullptr, 0, nullptr, m.text, kMessageBytes), m,
                 "plan", "null");
  plan = planned(problem, "reference_forward");
  expect_refused(rowmax_execute(plan, nullptr, nullptr, 0, nullptr, m.text, kMessageBytes), m,
                 "tensors", "null");
  rowmax_plan_destroy(plan);
  expect_refused(rowmax_merge(nullptr, 1, &state, m.text, kMessageBytes), m, "parts", "null");
  expect_refused(rowmax_merge(&state, 1, nullptr, m.text, kMessageBytes), m, "into", "null");
  expect_refused(rowmax_finalize(nullptr, nullptr, nullptr, 0, nullptr, m.text, kMessageBytes), m,
                 "state", "null");
  expect_refused(rowmax_state_from_output(nullptr, 0, nullptr, nullptr, m.text, kMessageBytes), m,
                 "into", "null");
  rowmax_plan_destroy(nullptr);
  EXPECT_STREQ(rowmax_plan_kernel(nullptr), "");
  EXPECT_EQ(rowmax_plan_workspace_bytes(nullptr, 1), 0u);
}

TEST(CApi, ExecuteEqualsCpp) {
  const AttentionProblem problem = problem_of("forward f32 b2 hq4 hkv2 sq5 sk7 d8 dv6 causal");
  TensorSet set(problem);
  for (ConstTensorView* view : {&set.tensors.q, &set.tensors.k, &set.tensors.v}) {
    TensorView writable = {const_cast<void*>(view->data), view->dtype, view->rank};
    std::copy(view->sizes, view->sizes + 4, writable.sizes);
    testing::fill(writable, static_cast<int>(view - &set.tensors.q));
  }
  PlanOptions options;
  options.force_kernel = "reference_forward";
  const Result<Plan> cpp_plan = make_plan(problem, host_device(), options);
  ASSERT_TRUE(cpp_plan.ok()) << cpp_plan.status().message();
  const Workspace workspace(*cpp_plan, 2);
  ExecuteOptions execute_options;
  execute_options.threads = 2;
  ASSERT_TRUE(
      execute(*cpp_plan, set.tensors, workspace.data(), workspace.bytes(), execute_options).ok());

  const rowmax_problem c_problem = problem_to_c(problem);
  rowmax_plan* plan = planned(c_problem, "reference_forward");
  ASSERT_NE(plan, nullptr);
  EXPECT_STREQ(rowmax_plan_kernel(plan), "reference_forward");
  EXPECT_EQ(rowmax_plan_workspace_bytes(plan, 2), workspace.bytes());
  rowmax_tensors tensors = forward_tensors(set.tensors);
  tensors.out = tensor_of(set.view(DType::kF32, {2, 5, 4, 6}));
  tensors.lse = tensor_of(set.view(DType::kF32, {2, 4, 5}));
  rowmax_execute_options c_options = {};
  c_options.struct_size = sizeof(c_options);
  c_options.threads = 2;
  Message message;
  ASSERT_EQ(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                           message.text, kMessageBytes),
            ROWMAX_OK)
      << message.text;
  EXPECT_EQ(std::memcmp(tensors.out.data, set.tensors.out.data, 2 * 5 * 4 * 6 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(tensors.lse.data, set.tensors.lse.data, 2 * 4 * 5 * sizeof(float)), 0);

  tensors.q.dtype = 12;
  expect_refused(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                                message.text, kMessageBytes),
                 message, "q:", "is 12");
  tensors.q = tensor_of(set.tensors.q);
  tensors.k.rank = 3;
  expect_refused(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                                message.text, kMessageBytes),
                 message, "k:", "rank is 3");
  tensors.k = tensor_of(set.tensors.k);
  EXPECT_EQ(rowmax_execute(plan, &tensors, nullptr, 0, &c_options, message.text, kMessageBytes),
            ROWMAX_OUT_OF_MEMORY);
  c_options.reserved = 1;
  expect_refused(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                                message.text, kMessageBytes),
                 message, "options.reserved", "is 1");
  c_options.reserved = 0;
  c_options.reserved2 = 2;
  expect_refused(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                                message.text, kMessageBytes),
                 message, "options.reserved", "is 2");
  c_options.struct_size = offsetof(rowmax_execute_options, stream);  // of the first header
  EXPECT_EQ(rowmax_execute(plan, &tensors, workspace.data(), workspace.bytes(), &c_options,
                           message.text, kMessageBytes),
            ROWMAX_OK)
      << message.text;
  rowmax_plan_destroy(plan);
}

TEST(CApi, ExplainEqualsCpp) {
  const rowmax_problem problem = parsed("forward f32 b1 h1 s4 d8");
  rowmax_plan* plan = planned(problem, "reference_forward");
  PlanOptions options;
  options.force_kernel = "reference_forward";
  const Result<Plan> cpp_plan =
      make_plan(problem_of("forward f32 b1 h1 s4 d8"), host_device(), options);
  ASSERT_TRUE(cpp_plan.ok());
  size_t needed = 0;
  ASSERT_EQ(rowmax_plan_explain(plan, nullptr, 0, &needed, nullptr, 0), ROWMAX_OK);
  std::vector<char> text(needed);
  ASSERT_EQ(rowmax_plan_explain(plan, text.data(), text.size(), nullptr, nullptr, 0), ROWMAX_OK);
  EXPECT_EQ(std::string(text.data()), explain(*cpp_plan));
  rowmax_plan_destroy(plan);
}

TEST(CApi, MergeAndFinalize) {
  float m[2] = {0.0f, 0.0f};
  float l[2] = {1.0f, 3.0f};
  float o[2] = {4.0f, 8.0f};
  const rowmax_state parts[2] = {{&m[0], &l[0], &o[0], 1, 1, 1}, {&m[1], &l[1], &o[1], 1, 1, 1}};
  Message message;
  ASSERT_EQ(rowmax_merge(parts, 2, &parts[0], message.text, kMessageBytes), ROWMAX_OK)
      << message.text;
  EXPECT_EQ(l[0], 4.0f);
  float out = 0.0f;
  float lse = 0.0f;
  ASSERT_EQ(rowmax_finalize(&parts[0], nullptr, &out, 1, &lse, message.text, kMessageBytes),
            ROWMAX_OK);
  EXPECT_EQ(out, 3.0f);
  EXPECT_FLOAT_EQ(lse, std::log(4.0f));
  ASSERT_EQ(rowmax_state_from_output(&out, 1, &lse, &parts[1], message.text, kMessageBytes),
            ROWMAX_OK);
  EXPECT_EQ(m[1], lse);
  EXPECT_EQ(l[1], 1.0f);
}

TEST(CApi, ContiguousViews) {
  const int64_t sizes[3] = {2, 3, 5};
  int dummy = 0;
  const rowmax_tensor tensor = rowmax_contiguous(&dummy, ROWMAX_I32, 3, sizes);
  EXPECT_EQ(tensor.rank, 3);
  EXPECT_EQ(tensor.strides[0], 15);
  EXPECT_EQ(tensor.strides[2], 1);
  EXPECT_EQ(tensor.sizes[3], 0);
}

TEST(CApi, OnePlanServesManyThreads) {
  const AttentionProblem problem = problem_of("forward f32 b1 h2 s33 d8");
  const rowmax_problem c_problem = problem_to_c(problem);
  rowmax_plan* plan = planned(c_problem, "reference_forward");
  std::vector<std::thread> threads;
  std::vector<rowmax_status> statuses(4, -1);
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] {
      TensorSet set(problem);
      const size_t bytes = rowmax_plan_workspace_bytes(plan, 2);
      const rowmax_tensors tensors = forward_tensors(set.tensors);
      rowmax_execute_options options = {};
      options.struct_size = sizeof(options);
      options.threads = 2;
      statuses[i] =
          rowmax_execute(plan, &tensors, set.allocate(bytes), bytes, &options, nullptr, 0);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const rowmax_status status : statuses) {
    EXPECT_EQ(status, ROWMAX_OK);
  }
  rowmax_plan_destroy(plan);
}

}  // namespace
}  // namespace rowmax
