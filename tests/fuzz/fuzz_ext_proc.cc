// Envoy's messages to the picker, in any order: a request gets at most one place, and answers follow the
// protocol.
#include <string>
#include <utility>

#include "common/json/json_reader.h"
#include "common/telemetry/metrics/engine_metrics.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "router/engine_link/http/http_engine.h"
#include "router/engine_link/http/pod_watch.h"
#include "router/engine_link/published/kv_events.h"
#include "router/engine_link/published/rank_messages.h"
#include "router/engine_link/published/step_metrics.h"
#include "router/frontend/endpoint_picker/exchange.h"
#include "router/frontend/endpoint_picker/picker_service.h"
#include "tests/fuzz/fuzz.h"

namespace bfio::router::picker {
namespace {

constexpr size_t kBodyBytes = 1000;

void CheckAnswers(Exchange& exchange, int& places) {
  for (const Out& answer : exchange.TakeAnswers()) {
    fuzz::Check(answer.response_case() != Out::RESPONSE_NOT_SET, "no empty answer");
    places += answer.has_dynamic_metadata() ? 1 : 0;
  }
  fuzz::Check(places <= 1, "a request has one place");
  fuzz::Check(exchange.body().size() <= kBodyBytes, "the body is bounded");
}

}  // namespace
}  // namespace bfio::router::picker

// Each message: a byte with its length, and the message. The first byte of the input says what the router
// does with a request that is complete.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bfio::router::picker;
  static const google::protobuf::LogSilencer quiet;
  const auto text = bfio::fuzz::Text(data, size);
  const std::string changed = bfio::WithMembers(text, {{"kv_transfer_params", "null"}});
  if (const auto request = ReadOpenAiRequest(text); request.ok()) {
    const auto again = ReadOpenAiRequest(changed);
    bfio::fuzz::Check(again.ok() && again->prompt_tokens == request->prompt_tokens &&
                          again->max_tokens == request->max_tokens,
                      "a hand-off changes nothing else");
  }
  (void)bfio::router::EndOfPrefill(bfio::HttpClient::Answer{200, std::string(text)}, {"NixlConnector"});
  (void)bfio::ReadEngineMetrics(bfio::fuzz::Text(data, size));
  (void)bfio::router::RenderedFrom(bfio::HttpClient::Answer{200, std::string(text)});
  bfio::router::KvEvents events(/*exact=*/true);
  events.Begin(0, 1);
  for (const uint64_t number : {1, 2}) events.Take(0, number, text).IgnoreError();
  bfio::router::EngineLoad load;
  events.TakeChanges(0, load);
  bfio::fuzz::Check(load.cache_lost_ppm >= 0 && load.cache_lost_ppm <= 1'000'000, "a share is lost");
  if (const auto step = bfio::router::ReadStepMetrics(size, text); step.ok())
    bfio::fuzz::Check(
        step->batch().tokens >= 0 && step->batch().prefill_pairs >= 0 && step->took >= absl::ZeroDuration(),
        "a step has no negative part");
  bfio::router::ZmtpReader subscriber;
  const std::string hello = bfio::router::ZmtpReader::Hello("ROUTER");
  for (const absl::string_view part :
       {absl::string_view(hello), text.substr(0, size / 2), text.substr(size / 2)}) {
    const absl::Status read = subscriber.Take(part, [](const auto& parts) {
      bfio::fuzz::Check(!parts.empty() && parts.size() <= bfio::router::ZmtpReader::kMostParts,
                        "a message has a bounded number of parts");
    });
    if (!read.ok()) break;
  }
  if (const auto object = bfio::ReadJsonObject(text, ""); object.ok()) {
    (void)bfio::router::ReadPod(*object);
    if (const auto pool = bfio::router::ReadPool(*object); pool.ok())
      bfio::fuzz::Check(pool->selector.find('&') == std::string::npos, "a selector is a part of a query");
  }
  bfio::router::EngineDescription description;
  (void)bfio::router::ReadModels(bfio::fuzz::Text(data, size), description);
  if (size == 0) return 0;
  const uint8_t what = data[0];
  Exchange exchange(kBodyBytes);
  int asked = 0, places = 0;
  for (size_t at = 1; at < size;) {
    const size_t length = std::min<size_t>(data[at], size - at - 1);
    In message;
    const bool parsed = message.ParseFromArray(data + at + 1, static_cast<int>(length));
    at += 1 + length;
    if (!parsed) continue;
    switch (exchange.OnMessage(std::move(message))) {
      case Exchange::Action::kPlace:
        bfio::fuzz::Check(++asked == 1, "a request is complete once");
        if (what % 3 == 0) exchange.OnPlaced({"10.0.0.1:8000", what});
        if (what % 3 == 1) exchange.OnRefused(absl::UnavailableError("none"));
        if (what % 2 == 1) exchange.DropBody();
        break;
      case Exchange::Action::kTooLarge:
      case Exchange::Action::kBroken: return 0;
      case Exchange::Action::kNone: break;
    }
    CheckAnswers(exchange, places);
  }
  exchange.OnRefused(absl::InternalError("end"));
  CheckAnswers(exchange, places);
  return 0;
}
