#include "tools/sim/prefixes/prefix_workload.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio::sim {
namespace {

// Maximum prompt length; a session whose next prompt would be longer ends.
constexpr int64_t kLongestPrompt = 30'000;
constexpr int64_t kSampledSessions = 2'000;
// Number of the first of the sessions that are drawn only to compute the capacity.
constexpr int64_t kSampleNumbers = int64_t{1} << 40;

// Names of the whole blocks of a sequence.
std::vector<uint64_t> NameBlocks(const std::vector<PrefixWorkload::Segment>& segments) {
  std::vector<uint64_t> names;
  uint64_t name = 0;
  int64_t in_block = 0;
  for (const PrefixWorkload::Segment& segment : segments) {
    for (int64_t at = 0; at < segment.tokens;) {
      const int64_t piece = std::min(kEngineBlockTokens - in_block, segment.tokens - at);
      name =
          Mix64(name ^ Mix64(segment.text ^ Mix64(static_cast<uint64_t>(at * kEngineBlockTokens + piece))));
      at += piece;
      in_block = (in_block + piece) % kEngineBlockTokens;
      if (in_block == 0) names.push_back(name);
    }
  }
  return names;
}

core::PrefixBlocks RouterNames(const std::vector<uint64_t>& blocks, int64_t prompt_tokens) {
  constexpr int64_t kRatio = core::kPrefixBlockTokens / kEngineBlockTokens;
  const int64_t whole = prompt_tokens / core::kPrefixBlockTokens;
  if (whole == 0) return nullptr;
  std::vector<uint64_t> names;
  for (int64_t i = 1; i <= whole; ++i) names.push_back(blocks[static_cast<size_t>(i * kRatio - 1)]);
  return std::make_shared<const std::vector<uint64_t>>(std::move(names));
}

}  // namespace

const std::vector<WorkloadShape>& WorkloadShapes() {
  static const auto* const shapes = new std::vector<WorkloadShape>{
      {.name = "none", .message = {1'200, 1}, .output = {250, 0.8}},
      // The mean of a lognormal: exp(8 + 0.6^2 / 2) output tokens.
      {.name = "reasoning", .message = {160, -1}, .output = {3'569, 0.6}, .max_new_tokens = 16'384},
      {.name = "system_prompts",
       .shared_texts = 32,
       .zipf = 1,
       .shared = {1'500, 0.6},
       .message = {300, 0.8},
       .output = {200, 0.8}},
      {.name = "documents",
       .shared_texts = 400,
       .zipf = 0.8,
       .shared = {6'000, 0.6},
       .message = {60, 0.5},
       .output = {120, 0.5}},
      {.name = "chat",
       .shared_texts = 1,
       .shared = {600, 0},
       .message = {150, 1},
       .output = {300, 0.8},
       .turns = 5,
       .think_s = 20},
      {.name = "agents",
       .shared_texts = 1,
       .shared = {3'000, 0},
       .message = {800, 1},
       .output = {150, 0.8},
       .turns = 12,
       .think_s = 2},
  };
  return *shapes;
}

absl::StatusOr<WorkloadShape> FindWorkload(absl::string_view name) {
  for (const WorkloadShape& shape : WorkloadShapes())
    if (name == shape.name) return shape;
  const auto add = [](std::string* text, const WorkloadShape& shape) { absl::StrAppend(text, shape.name); };
  return absl::InvalidArgumentError(
      absl::StrCat("workload '", name, "' is not one of ", absl::StrJoin(WorkloadShapes(), ", ", add)));
}

PrefixWorkload::PrefixWorkload(const WorkloadShape& shape, uint64_t seed) : shape_(shape), rng_(seed) {
  Rng rng = rng_.Fork(0);
  double sum = 0;
  for (int32_t i = 0; i < shape.shared_texts; ++i) {
    shared_tokens_.push_back(Draw(shape.shared, rng, kLongestPrompt / 2));
    popularity_.push_back(sum += std::pow(i + 1, -shape.zipf));
  }
}

PrefixWorkload::PrefixWorkload(const Trace* trace, int64_t longest, uint64_t seed)
    : shape_{.name = "trace", .max_new_tokens = 1}, rng_(seed), trace_(trace), longest_(longest) {
  for (size_t i = 0; i < trace->requests.size(); ++i) {
    if (trace->requests[i].after < 0) first_.push_back(i);
    shape_.max_new_tokens = std::max(shape_.max_new_tokens, trace->requests[i].output_tokens);
    shape_.think_s += trace->requests[i].think_s / static_cast<double>(trace->requests.size());
  }
  shape_.turns = static_cast<double>(trace->requests.size()) / static_cast<double>(first_.size());
  constexpr double kGoldenRatio = 0.618033988749895;
  begin_ =
      static_cast<size_t>(kGoldenRatio * static_cast<double>((seed - 1) * first_.size())) % first_.size();
}

int64_t PrefixWorkload::Draw(const WorkloadShape::Length& length, Rng& rng, int64_t most) const {
  if (length.sigma < 0) return 20 + static_cast<int64_t>(rng.Below(281));
  const double log = std::log(length.mean) - length.sigma * length.sigma / 2 + length.sigma * rng.Normal();
  return std::clamp<int64_t>(std::llround(std::exp(log)), 1, most);
}

PrefixWorkload::Session PrefixWorkload::NewSession(int64_t number) const {
  Session session;
  session.number = number;
  session.rng = rng_.Fork(static_cast<uint64_t>(number) + 1);
  session.texts = Mix64(static_cast<uint64_t>(number) << 20);
  if (trace_ != nullptr) {
    session.next = first_[trace_->has_arrivals ? (begin_ + static_cast<size_t>(number)) % first_.size()
                                               : session.rng.Below(first_.size())];
    return session;
  }
  if (popularity_.empty()) return session;
  const double at = session.rng.Uniform() * popularity_.back();
  const auto text = static_cast<size_t>(std::upper_bound(popularity_.begin(), popularity_.end() - 1, at) -
                                        popularity_.begin());
  session.said.push_back({text + 1, shared_tokens_[text]});
  session.tokens = shared_tokens_[text];
  return session;
}

std::optional<ServeRequest> PrefixWorkload::NextTurn(Session& session) const {
  if (session.ended) return std::nullopt;
  if (trace_ != nullptr) return NextOfTrace(session);
  const int64_t message = Draw(shape_.message, session.rng, kLongestPrompt / 2);
  if (session.tokens + message > kLongestPrompt) return std::nullopt;
  ServeRequest request;
  request.session = session.number;
  request.prompt = session.tokens + message;
  request.output = Draw(shape_.output, session.rng, shape_.max_new_tokens);
  request.max_new_tokens = shape_.max_new_tokens;
  session.said.push_back({++session.texts, message});
  session.said.push_back({++session.texts, request.output});
  session.tokens += message + request.output;
  session.ended = session.rng.Uniform() < 1 / shape_.turns;
  request.blocks = NameBlocks(session.said);
  request.prefix = RouterNames(request.blocks, request.prompt);
  return request;
}

std::optional<ServeRequest> PrefixWorkload::NextOfTrace(Session& session) const {
  const TraceRequest& row = trace_->requests[session.next];
  if (row.prompt_tokens + row.output_tokens > longest_) return std::nullopt;
  ServeRequest request;
  request.session = session.number;
  request.prompt = row.prompt_tokens;
  request.output = row.output_tokens;
  request.max_new_tokens = shape_.max_new_tokens;
  // A session that is drawn twice is two.
  const uint64_t salt = trace_->has_arrivals ? 0 : Mix64(static_cast<uint64_t>(session.number) + 1);
  session.said.clear();
  int64_t left = row.prompt_tokens;
  for (const uint64_t block : row.blocks) {
    const int64_t tokens = std::min(left, trace_->block_tokens);
    if (tokens > 0) session.said.push_back({block ^ salt, tokens});
    left -= tokens;
  }
  session.said.push_back({++session.texts, left + row.output_tokens});
  request.blocks = NameBlocks(session.said);
  request.prefix = RouterNames(request.blocks, request.prompt);
  session.ended = !FollowsInTrace(++session.next);
  return request;
}

double PrefixWorkload::Think(Session& session) const {
  if (trace_ != nullptr) return trace_->requests[session.next].think_s;
  return session.rng.Exponential() * shape_.think_s;
}

std::vector<double> PrefixWorkload::Arrivals(double sessions_per_s, int64_t sessions) const {
  std::vector<double> arrivals;
  if (trace_ == nullptr || !trace_->has_arrivals) return arrivals;
  const auto count = std::min<size_t>(first_.size(), static_cast<size_t>(sessions));
  // A trace that ends begins again.
  const double all_s = trace_->requests[first_.back()].arrival_s;
  for (size_t i = begin_; i < begin_ + count; ++i) {
    const double turns = i < first_.size() ? 0 : all_s;
    arrivals.push_back(turns + trace_->requests[first_[i % first_.size()]].arrival_s -
                       trace_->requests[first_[begin_]].arrival_s);
  }
  const double slower =
      arrivals.back() > 0 ? static_cast<double>(count) / arrivals.back() / sessions_per_s : 1;
  for (double& at_s : arrivals) at_s *= slower;
  return arrivals;
}

PrefixWorkload::Session PrefixWorkload::UnderWay(int64_t number) const {
  // The number of turns is geometric, so the number of remaining turns does not depend on the number so far.
  Session session = NewSession(number);
  if (trace_ != nullptr) {
    size_t turns = 1;
    while (FollowsInTrace(session.next + turns)) ++turns;
    session.next += session.rng.Below(turns);
    return session;
  }
  while (!session.ended && NextTurn(session).has_value()) continue;
  session.ended = false;
  return session;
}

double PrefixWorkload::Capacity(const EngineOptions& engine) const {
  double requests = 0, prompt = 0, output = 0, context = 0, pairs = 0;
  for (int64_t i = 0; i < kSampledSessions; ++i) {
    Session session = NewSession(kSampleNumbers + i);
    while (const auto turn = NextTurn(session)) {
      const auto p = static_cast<double>(turn->prompt), o = static_cast<double>(turn->output);
      requests += 1;
      prompt += p;
      output += o;
      context += o * (p + o / 2);
      pairs += p * p / 2;
    }
  }
  // Residents are limited by slots, by memory, and by the token budget including their prompts.
  const double by_memory = static_cast<double>(engine.kv_tokens) * output / context;
  double decodes = std::min<double>(engine.slots, by_memory);
  decodes = std::min(decodes, static_cast<double>(engine.token_budget) / (1 + prompt / output));
  // A step completes decodes / output of a request.
  const double share = decodes / output;
  const BatchCost& cost = engine.cost;
  const double beyond = std::max(0.0, decodes + share * prompt - static_cast<double>(cost.b0_tokens));
  const double step_s = cost.c_s + cost.a_s_per_token * beyond + cost.k1_s_per_pair * share * pairs +
                        cost.k2_s_per_token * share * context;
  return share * requests / step_s;
}

}  // namespace bfio::sim
