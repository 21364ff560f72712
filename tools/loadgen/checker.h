// Does one response stream keep the API's promises?
//
// Purpose: the traffic generator is also a test of the router: tokens arrive in order without gap or
// repetition, as many as asked for (or fewer, where the model may end them), and end with exactly one
// `finish` whose usage agrees. Pure; one checker per stream, one thread at a time.
#ifndef BFIO_TOOLS_LOADGEN_CHECKER_H_
#define BFIO_TOOLS_LOADGEN_CHECKER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace bfio::loadgen {

// What a response message says, apart from protobuf.
struct StreamMessage {
  struct Finish {
    // FinishReason was LENGTH: with ignore_eos and no stop tokens it can be nothing else. Or it was STOP.
    bool reason_is_length = false;
    bool reason_is_stop = false;
    bool has_usage = false;
    uint32_t prompt_tokens = 0;
    uint32_t completion_tokens = 0;
  };

  absl::string_view request_id;
  uint32_t first_index = 0;
  uint32_t tokens = 0;
  std::optional<Finish> finish;
};

class StreamChecker {
 public:
  // `first_index` is where the stream was asked to begin: above 0 when it resumes one that broke.
  StreamChecker(std::string request_id, uint32_t prompt_tokens, uint32_t output_tokens,
                uint32_t first_index = 0, bool open_ended = false)
      : request_id_(std::move(request_id)),
        prompt_tokens_(prompt_tokens),
        output_tokens_(output_tokens),
        open_ended_(open_ended),
        tokens_(first_index) {}

  void OnMessage(const StreamMessage& message);

  enum class End { kOk, kConnectionLost, kError };

  // The stream has ended. An error breaks no promise by itself; a `finish` before it does, unless the
  // connection broke between the two: the request is complete then, and only its status has not come.
  void OnEnd(End end);

  // The `finish` has come: nothing of the request is missing.
  bool finished() const { return finished_; }

  // Index of the token that is due: how many the request has given, earlier streams included.
  uint32_t tokens() const { return tokens_; }
  // The first broken promise, "" while there is none.
  const std::string& breach() const { return breach_; }

 private:
  void CheckFinish(const StreamMessage::Finish& finish);
  void Breach(std::string text);

  const std::string request_id_;
  const uint32_t prompt_tokens_;
  const uint32_t output_tokens_;
  // The model may end it before.
  const bool open_ended_;
  uint32_t tokens_;
  bool finished_ = false;
  std::string breach_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_CHECKER_H_
