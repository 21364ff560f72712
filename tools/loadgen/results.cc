#include "tools/loadgen/results.h"

namespace bfio::loadgen {
namespace {

constexpr size_t kBreachExamples = 5;

}  // namespace

void Results::Sent(double due_s, uint32_t level, std::optional<double> lag_s) {
  ++requests_sent;
  timeline.OnSent(due_s);
  levels.OnSent(level);
  if (!lag_s.has_value()) return;
  schedule_lag_s.Add(*lag_s);
  timeline.OnLag(due_s, *lag_s);
}

void Results::NotSent(uint32_t level) {
  ++not_sent;
  levels.OnNotSent(level);
}

void Results::Add(const EndedRequest& request) {
  timeline.OnEnded(request);
  levels.OnEnded(request, goodput.Add(request));
  output_tokens += request.output_tokens;
  token_mismatches += request.token_mismatches;
  if (!request.breach.empty()) {
    ++stream_breaches;
    if (breach_examples.size() < kBreachExamples) breach_examples.push_back(request.breach);
  }
  if (request.interrupted) {
    ++interrupted;
    return;
  }
  if (request.code != "OK") {
    ++failed[request.code];
    failed_examples.emplace(request.code, request.message);
    return;
  }
  ++completed;
  prompt_tokens += request.prompt_tokens;
  e2e_s.Add(request.e2e_s);
  if (request.output_tokens == 0) return;
  ttft_s.Add(request.ttft_s);
  if (request.output_tokens > 1) tpot_s.Add(request.tpot_s());
  for (const TokenGap& gap : request.gaps) itl_s.Add(gap.gap_s / gap.tokens, gap.tokens);
}

std::optional<double> Results::good_share() const {
  const uint64_t due = completed + failed_total() + not_sent;
  return due > 0 ? std::optional<double>(static_cast<double>(goodput.good()) / static_cast<double>(due))
                 : std::nullopt;
}

uint64_t Results::failed_total() const {
  uint64_t total = 0;
  for (const auto& [code, count] : failed) total += count;
  return total;
}

int ExitCode(const Results& results, bool interrupted) {
  if (interrupted) return 130;
  if (results.stream_breaches > 0 || results.token_mismatches > 0) return 3;
  return results.failed_total() > 0 || results.completed == 0 ? 1 : 0;
}

}  // namespace bfio::loadgen
