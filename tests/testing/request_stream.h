// Requests and their streams, for tests.
//
// Purpose: everything in the tests that reads tokens reads them through this one class over the client
// library's StreamReader: how many messages are read, and when, is the test's choice. A stream that a test
// stops reading is what a router sees of a client that never reads: only a bounded number is read ahead.
// Threads: one; Cancel may be called from any.
#ifndef BFIO_TESTS_TESTING_REQUEST_STREAM_H_
#define BFIO_TESTS_TESTING_REQUEST_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tools/client/stream_reader.h"

namespace bfio::testing {

// A synthetic request that runs to max_new_tokens.
v1::GenerateRequest SyntheticRequest(uint32_t prompt, uint32_t output);

struct GenerateResult {
  grpc::Status status;
  std::vector<uint32_t> tokens;
  bool contiguous = true;
  int finishes = 0;
  v1::Finish finish;
};

struct RequestStreamOptions {
  absl::Duration deadline = absl::InfiniteDuration();
  client::Metadata metadata;
  // What earlier streams of the request have brought.
  GenerateResult so_far;
};

class RequestStream {
 public:
  // Sends the request. `stub` outlives the stream.
  RequestStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                RequestStreamOptions options = {});
  // Cancels what has not ended.
  ~RequestStream();

  // Waits for the next message and adds it to the result; false when the stream has ended.
  bool Read();
  // Reads to the end.
  const GenerateResult& End();
  // Ends the stream as a lost connection would.
  void Cancel() { reader_->Cancel(); }

  // The status is that of the end.
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

#endif  // BFIO_TESTS_TESTING_REQUEST_STREAM_H_
