// Replies to clients: completions whole or in chunks, and errors, in the form of OpenAI's API.
//
// Purpose: the only place that writes their JSON. Pure: time is an argument. A Reply belongs to one request.
#ifndef BFIO_TOOLS_OPENAI_REPLY_H_
#define BFIO_TOOLS_OPENAI_REPLY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.pb.h"
#include "tools/openai/byte_text.h"
#include "tools/openai/completion_request.h"

namespace bfio::openai {

struct ErrorReply {
  int http_status = 500;
  // Whole seconds, at least 1; for the Retry-After header.
  std::optional<int64_t> retry_after_s;
  std::string body;
};
ErrorReply ToError(const absl::Status& status);
// For errors that have no status of the router's: 404 of a path, 405, 413, 431.
std::string ErrorBody(int http_status, const std::string& message);

class Reply {
 public:
  Reply(Api api, const CompletionRequest& request, std::string model, std::string id, uint32_t byte_offset,
        absl::Time created);

  // A stream: an event per message of tokens, "" where there is nothing to say.
  std::string TokensEvent(absl::Span<const uint32_t> ids);
  // The last ones: why it ended, the usage if it was asked for, [DONE].
  std::string FinishEvents(const v1::Finish& finish);
  // In place of them. No [DONE] follows.
  static std::string ErrorEvent(const absl::Status& status);

  // Not a stream: everything at the end.
  void Add(absl::Span<const uint32_t> ids);
  std::string Whole(const v1::Finish& finish);

 private:
  // What is said of a message's tokens: not the one that was asked to end the text, which is the last of all.
  absl::Span<const uint32_t> Said(absl::Span<const uint32_t> ids) const;
  std::string Chunk(const std::string& text, absl::Span<const uint32_t> ids, const char* finish_reason);

  const Api api_;
  const bool stream_, include_usage_, return_token_ids_;
  const std::string model_, id_;
  const int64_t created_;
  const std::vector<uint32_t> unsaid_stop_ids_;
  TextDecoder decoder_;
  bool role_told_ = false;
  std::string text_;
  std::vector<uint32_t> ids_;
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_REPLY_H_
