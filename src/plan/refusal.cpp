#include "plan/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace rowmax::plan {
namespace {

bool is_made_for(const AttentionProblem& problem, const KernelConfig& config) {
  const auto fits = [](int64_t size, int largest) { return largest == 0 || size <= largest; };
  return config.dtype.value_or(problem.dtype) == problem.dtype &&
         fits(problem.sizes.head_dim, config.head_dim) &&
         fits(problem.sizes.head_dim_v, config.head_dim_v) &&
         (config.mask == MaskClass::kBanded || problem.band.is_full());
}

// "head_dim 128 exceeds 64" is what exceeds (" exceeds " included) and a kernel's own limit.
struct Reason {
  std::string_view text;
  std::optional<int64_t> limit;
};

Reason split(std::string_view reason) {
  constexpr std::string_view kVerb = " exceeds ";
  const size_t verb = reason.rfind(kVerb);
  if (verb == std::string_view::npos) {
    return {reason, std::nullopt};
  }
  const std::string_view number = reason.substr(verb + kVerb.size());
  int64_t limit = 0;
  const auto [stop, error] = std::from_chars(number.begin(), number.end(), limit);
  return error == std::errc() && stop == number.end()
             ? Reason{reason.substr(0, verb + kVerb.size()), limit}
             : Reason{reason, std::nullopt};
}

// Kernels that decline for one reason.
struct Group {
  std::string_view text;
  std::vector<int64_t> limits;  // ascending, each once; empty: the reason has none
  std::vector<std::string_view> kernels;
  bool made_for = false;  // any of them
};

void add(std::vector<Group>& groups, const Refusal& refusal, bool made_for) {
  const Reason reason = split(refusal.reason);
  auto group = std::find_if(groups.begin(), groups.end(), [&reason](const Group& other) {
    return other.text == reason.text && other.limits.empty() == !reason.limit;
  });
  if (group == groups.end()) {
    group = groups.insert(groups.end(), Group{reason.text, {}, {}, false});
  }
  if (reason.limit) {
    const auto at = std::lower_bound(group->limits.begin(), group->limits.end(), *reason.limit);
    if (at == group->limits.end() || *at != *reason.limit) {
      group->limits.insert(at, *reason.limit);
    }
  }
  group->kernels.emplace_back(refusal.kernel->name);
  group->made_for = group->made_for || made_for;
}

std::string text_of(const Group& group) {
  constexpr size_t kMostNames = 4;
  const size_t count = group.kernels.size();
  const std::string kernels =
      count <= kMostNames ? fmt::format("{}", fmt::join(group.kernels, ", "))
                          : fmt::format("{} kernels ({}, ...)", count, group.kernels.front());
  return fmt::format("; {}: {}{}", kernels, group.text, fmt::join(group.limits, ", "));
}

}  // namespace

std::string refusal_text(const AttentionProblem& problem, std::span<const Refusal> refusals) {
  std::vector<Group> groups;
  for (const Refusal& refusal : refusals) {
    add(groups, refusal, is_made_for(problem, *refusal.kernel));
  }
  std::stable_partition(groups.begin(), groups.end(),
                        [](const Group& group) { return group.made_for; });
  std::string text = fmt::format("no kernel serves '{}'", to_string(problem));
  for (const Group& group : groups) {
    text += text_of(group);
  }
  return text;
}

}  // namespace rowmax::plan
