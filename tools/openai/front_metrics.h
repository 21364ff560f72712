// What the HTTP front shows Prometheus: completions by how they ended, and how long they took.
//
// Purpose: the router cannot see what never reaches it: requests that the front refuses, clients that go
// away, connections that wait for a thread. Threads: any. Seconds.
#ifndef BFIO_TOOLS_OPENAI_FRONT_METRICS_H_
#define BFIO_TOOLS_OPENAI_FRONT_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/telemetry/metrics/distribution.h"
#include "common/telemetry/metrics/exposition.h"

namespace bfio::openai {

// Every metric there is.
std::vector<MetricInfo> FrontMetricInfos();

class FrontMetrics {
 public:
  // A completion from its request's headers to the end of its reply. FrontMetrics outlives it.
  class Completion {
   public:
    explicit Completion(FrontMetrics* metrics);
    ~Completion();
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;

    // How it ended: an HTTP status, also where the reply's headers were out before. 499: the client went
    // away.
    void set_code(int code) { code_ = code; }
    // More tokens have come.
    void AddTokens(int64_t tokens);

   private:
    FrontMetrics* const metrics_;
    const absl::Time begin_;
    int64_t tokens_ = 0;
    int code_ = 499;
  };

  // `connections`, of which `waiting` have no thread yet: as they are now.
  std::string Text(const std::string& version, int64_t connections, int64_t waiting) const;

 private:
  mutable Mutex mutex_;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  // The codes are those that the front gives, a dozen.
  std::map<int, int64_t> ended_ ABSL_GUARDED_BY(mutex_);
  Distribution first_token_s_ ABSL_GUARDED_BY(mutex_){RequestSeconds()};
  Distribution latency_s_ ABSL_GUARDED_BY(mutex_){RequestSeconds()};
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_FRONT_METRICS_H_
