// Sends the model's tokenizer to the router, for gateways that request it from the router. The worker's end
// of WorkerLink.OfferTokenizer. Threads: one at a time for Send; any for Cancel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace bfio::worker {

class TokenizerOffer {
 public:
  // `directory`: the model's directory; empty: there is nothing to send.
  explicit TokenizerOffer(std::string directory) : directory_(std::move(directory)) {}

  // Sends the files until the router has them or reports that it needs none, for at most `patience`. Failures
  // are only logged: a gateway then needs its own tokenizer. `worker_id` and `instance`: those of the hello
  // of this rank, which is attached.
  void Send(const std::shared_ptr<grpc::Channel>& channel, const std::string& worker_id, uint64_t instance,
            absl::Duration patience);
  // Ends the present Send, and makes later ones do nothing.
  void Cancel();

 private:
  const std::string directory_;
  Mutex mutex_;
  // Context of the present call.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::worker
