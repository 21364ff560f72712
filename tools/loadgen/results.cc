#include "tools/loadgen/results.h"

namespace bfio::loadgen {
namespace {

constexpr size_t kBreachExamples = 5;

}  // namespace

void Results::Add(const EndedRequest& request) {
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
  if (request.output_tokens > 1) tpot_s.Add((request.e2e_s - request.ttft_s) / (request.output_tokens - 1));
  for (const TokenGap& gap : request.gaps) itl_s.Add(gap.gap_s / gap.tokens, gap.tokens);
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
