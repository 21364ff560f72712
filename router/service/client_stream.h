// One client's Generate stream.
//
// Purpose: tokens are handed in by the decision thread (Deliver, End: cheap, never block, never write),
// written by the sender thread (Flush), and coalesced while a write is under way: a slow reader costs one
// vector, bounded by the request's max_new_tokens, and never slows the group. Ownership: gRPC and the router
// share it; it lives until gRPC is done with the call and the last shared_ptr is gone. Threads: as said
// above; OnX are gRPC's.
#ifndef BFIO_ROUTER_SERVICE_CLIENT_STREAM_H_
#define BFIO_ROUTER_SERVICE_CLIENT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bfio/v1/inference.pb.h"
#include "common/base/mutex.h"

namespace bfio::router {

class ClientStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  // `on_cancel` is called at most once, on a gRPC thread, when the client goes away or its deadline passes.
  static std::shared_ptr<ClientStream> Create(std::string request_id, std::function<void()> on_cancel);

  // Appends a token to what is to be written. Returns true when the caller must have Flush called (once).
  [[nodiscard]] bool Deliver(uint32_t index, uint32_t token);

  // Ends the stream after what was delivered: with `finish` and OK, or with an error. Later calls do nothing.
  // Returns true when the caller must have Flush called.
  [[nodiscard]] bool End(grpc::Status status, std::optional<v1::Finish> finish);

  // Starts a write if there is something to write and none is under way.
  void Flush();

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  ClientStream(std::string request_id, std::function<void()> on_cancel)
      : request_id_(std::move(request_id)), on_cancel_(std::move(on_cancel)) {}

  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string request_id_;
  const std::function<void()> on_cancel_;
  std::shared_ptr<ClientStream> self_;  // held until OnDone

  Mutex mutex_;
  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;     // waits for Flush
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // a write is under way; response_ belongs to gRPC
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // a write failed: only Finish is left to do
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;     // End was called
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC was told to finish
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Finish> finish_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateResponse response_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_CLIENT_STREAM_H_
