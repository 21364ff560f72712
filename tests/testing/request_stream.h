// Requests and their streams, for tests.
//
// Purpose: all tests read tokens through this class, over the client library's StreamReader. The test decides
// how many messages are read, and when. When a test stops reading, the router sees a client that never reads:
// only a bounded number of messages is read ahead.
// Threads: one; any thread may call Cancel.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tools/client/stream_call.h"

namespace bfio::testing {

// A synthetic request that runs to max_new_tokens.
v1::GenerateRequest SyntheticRequest(uint32_t prompt, uint32_t output);

struct GenerateResult {
  grpc::Status status;
  std::vector<uint32_t> tokens;
  // Log-probabilities of the tokens, if requested.
  v1::Logprobs logprobs;
  bool contiguous = true;
  int finishes = 0;
  v1::Finish finish;
};

struct RequestStreamOptions {
  absl::Duration deadline = absl::InfiniteDuration();
  client::Metadata metadata;
  // The result of earlier streams of the request.
  GenerateResult so_far;
};

class RequestStream {
 public:
  // Sends the request. `stub` outlives the stream.
  RequestStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                RequestStreamOptions options = {});
  // Cancels the stream if it has not ended.
  ~RequestStream();

  // Waits for the next message and adds it to the result; false when the stream has ended.
  bool Read();
  // Reads to the end.
  const GenerateResult& End();
  // Ends the stream as a lost connection would.
  void Cancel() { reader_->Cancel(); }

  // The status is set at the end of the stream.
  const GenerateResult& result() const { return result_; }

 private:
  const std::shared_ptr<client::StreamReader> reader_;
  GenerateResult result_;
  bool ended_ = false;
};

// Sends one request and reads its stream to the end.
GenerateResult Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                        absl::Duration deadline = absl::Seconds(60));

}  // namespace bfio::testing
