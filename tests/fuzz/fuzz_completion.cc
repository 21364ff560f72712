// What a client of the OpenAI front sends, and what it is told: JSON in, JSON out.
//
// The first byte says which API, and whether ids are shifted to the end of what fits; the rest is the body.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz.h"
#include "tools/openai/completion_request.h"
#include "tools/openai/reply.h"

namespace {

using bfio::fuzz::Check;

bool IsJson(const std::string& text) {
  return nlohmann::json::accept(text);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  if (size == 0) return 0;
  using namespace bfio::openai;
  const Api api = data[0] % 2 == 0 ? Api::kCompletions : Api::kChat;
  ParseOptions options;
  // Near the end of what fits.
  if (data[0] % 4 >= 2) options.byte_offset = UINT32_MAX - 255;
  const auto request = ParseCompletionRequest(api, bfio::fuzz::Text(data + 1, size - 1), options);
  if (!request.ok()) {
    const ErrorReply error = ToError(request.status());
    Check(error.http_status == 400 || error.http_status == 404, "it is the client's fault");
    Check(IsJson(error.body), "an error is JSON");
    return 0;
  }
  bfio::v1::GenerateRequest sent;
  Check(sent.ParseFromString(request->generate.SerializeAsString()), "what is sent on can be read");
  // What it would be told if its prompt came back.
  const auto& ids = sent.token_ids().ids();
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Reply reply(api, *request, options.model, "id", options.byte_offset, absl::UnixEpoch());
  bfio::v1::Finish finish;
  finish.set_reason(bfio::v1::FINISH_REASON_STOP);
  if (!request->stream) {
    reply.Add(tokens);
    Check(IsJson(reply.Whole(finish)), "a completion is JSON");
    return 0;
  }
  const size_t half = tokens.size() / 2;
  const absl::Span<const uint32_t> all(tokens);
  for (const std::string& event :
       {reply.TokensEvent(all.first(half)), reply.TokensEvent(all.subspan(half))}) {
    if (event.empty()) continue;
    Check(event.rfind("data: ", 0) == 0 && event.find('\n') == event.size() - 2, "an event is a line");
    Check(IsJson(event.substr(6)), "an event is JSON");
  }
  Check(reply.FinishEvents(finish).find("data: [DONE]\n\n") != std::string::npos, "a stream is ended");
  return 0;
}
