// What the router's admin API reports, for the screen.
//
// Purpose: reads the cluster's state on request. A separate thread follows the steps and keeps the last step
// of each group. Every call has a deadline. Threads: the methods are called from one thread.
#ifndef BFIO_TOOLS_TOP_FEED_H_
#define BFIO_TOOLS_TOP_FEED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/login.h"

namespace bfio::top {

class Feed {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(5);
  // The router reports one of this many steps; more would change faster than a person reads.
  static constexpr uint32_t kEvery = 8;

  Feed(const std::string& address, Login login);
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // UNAVAILABLE "no router answers at HOST:PORT (--admin)" if there is no connection.
  absl::StatusOr<v1::ClusterState> State();
  absl::Status SetPolicy(const std::string& name);
  absl::Status Drain(const std::string& worker_id);
  absl::Status Undrain(const std::string& worker_id);

  // The last reported step of each group.
  std::vector<v1::StepSummary> LastSteps();

 private:
  void Follow();
  void Prepare(grpc::ClientContext& context) const;

  const std::string address_;
  const Login login_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> stub_;

  Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  // The call that follows the steps; cancelled at the end.
  grpc::ClientContext* following_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // By group.
  std::map<uint32_t, v1::StepSummary> last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_FEED_H_
