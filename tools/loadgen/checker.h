// Checks that one response stream keeps the API's guarantees.
//
// Purpose: the load generator is also a test of the router. Tokens must arrive in order without gap or
// repetition, as many as requested (or fewer, where the model may end them), followed by exactly one `finish`
// whose usage agrees. Pure; one checker per stream, one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "bfio/v1/inference.pb.h"

namespace bfio::loadgen {

class StreamChecker {
 public:
  // `first_index`: the index from which the stream was requested; above 0 when it resumes a broken stream.
  // `open_ended`: the model may end the request early.
  StreamChecker(std::string request_id, uint32_t prompt_tokens, uint32_t output_tokens,
                uint32_t first_index = 0, bool open_ended = false)
      : request_id_(std::move(request_id)),
        prompt_tokens_(prompt_tokens),
        output_tokens_(output_tokens),
        open_ended_(open_ended),
        tokens_(first_index) {}

  void OnMessage(const v1::GenerateResponse& message);

  // The stream has ended. An error does not break a guarantee, but an error after `finish` does, unless the
  // connection broke (UNAVAILABLE): then the request is complete and only its status is missing.
  void OnEnd(absl::StatusCode code);

  // `finish` has arrived: the request is complete.
  bool finished() const { return finished_; }

  // Index of the next token: the number of tokens received, earlier streams included.
  uint32_t tokens() const { return tokens_; }
  // The first broken guarantee; empty while there is none.
  const std::string& breach() const { return breach_; }

 private:
  void CheckFinish(const v1::Finish& finish);
  void Breach(std::string text);

  const std::string request_id_;
  const uint32_t prompt_tokens_;
  const uint32_t output_tokens_;
  // The model may end the request before `output_tokens_`.
  const bool open_ended_;
  uint32_t tokens_;
  bool finished_ = false;
  std::string breach_;
};

}  // namespace bfio::loadgen
