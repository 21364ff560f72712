// Load records for gateways that subscribe to them. Engines attach a load record to every batch of KV cache
// events on this stream. The router has no such events, so the records are sent alone: at most one per rank
// every 100 ms when the load has changed, and one per second otherwise. Without subscribers the load is not
// read. A subscriber that reads slowly gets only the newest record. Ownership: outlived by the handler;
// outlives the server, and Close ends its streams. Threads: any, plus one of its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/any_message.h"
#include "common/net/first_messages.h"
#include "engines/smg_common.pb.h"
#include "router/frontend/gateway/answers.h"
#include "router/frontend/request_handler.h"

namespace bfio::router::gateway {

namespace common_pb = ::smg::grpc::common;

class LoadFeed {
 public:
  static constexpr size_t kMaxSubscribers = 64;

  using Stream = CallReactor<AnyMessage>;

  explicit LoadFeed(RequestHandler* handler, absl::Duration interval = absl::Milliseconds(100));
  ~LoadFeed();

  // gRPC owns the result. It ends with `allowed` if that is an error, before its request is received (by
  // `messages`, which outlives it); with UNIMPLEMENTED for a subscriber that accepts no record before the
  // first event, since there are no events; with RESOURCE_EXHAUSTED beyond the peer's share of
  // kMaxSubscribers.
  Stream* Subscribe(grpc::CallbackServerContext* context, const absl::StatusOr<Peer>& allowed,
                    FirstMessages* messages);

  // Ends all streams and refuses new ones.
  void Close();

 private:
  class Subscriber;
  // Shared with the requested answer, which may come late.
  struct Answer;

  void Run();
  // Waits at most a second for an answer; UNKNOWN: none came.
  absl::StatusOr<Loads> Query();
  bool HasNewcomers();
  // False when the thread should end.
  bool AwaitSubscribers();
  bool Pause(absl::Duration time);
  void Add(const std::shared_ptr<Subscriber>& subscriber);
  void Publish(const common_pb::EngineLoad& load);

  RequestHandler* const handler_;
  const absl::Duration interval_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Subscriber>> subscribers_ ABSL_GUARDED_BY(mutex_);
  // There is a new subscriber that has had no record yet.
  bool newcomers_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router::gateway
