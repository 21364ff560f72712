// Clients of a chaos run, and a ledger with the result of every request.
//
// Purpose: sends requests in an open loop, checks every token's index and value as it arrives, resumes with
// resume_from_index where a stream breaks, cancels some requests, and records how each request ended.
//
// Threads: Run blocks the caller's thread; gRPC's threads deliver messages. The ledger is read after Run.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tests/chaos/workload.h"

namespace bfio::chaos {

enum class Fate {
  kOpen,
  kCompleted,  // every token, in order and correct, and one finish
  kCancelled,  // by this client
  kRefused,    // not accepted: no token, a status that allows a retry
  kEnded,      // by the router, after it was accepted, with UNAVAILABLE or RESOURCE_EXHAUSTED
  kLost,       // the router has forgotten it, or ended it in a way that is not allowed
  kHung,       // no end within the client's deadline
  kSuspected,  // ended with INTERNAL because workers died while running it; the audit requires as many faults
  kPoisoned,   // a poisoned request that ended with INTERNAL and no token, as required
};

// Number of tenants of the requests; each has a bearer token.
inline constexpr int kTenants = 5;
std::string TenantName(int tenant);
std::string TokenOf(const std::string& tenant);
// A tenant with a token that sends none of these requests, and a gateway with one (GreedyPeer).
inline constexpr char kGreedyTenant[] = "greedy", kGateway[] = "gateway";
// Writes a file for --client_tokens with all of them; returns its path.
std::string WriteTokens();

struct LoadOptions {
  std::string address;
  // Requests per second; Poisson.
  double rate = 200;
  uint64_t seed = 1;
  // Shares of requests that the client cancels, whose client disconnects and resumes, and that are not
  // resumable.
  double cancelled = 0.03, dropped = 0.03, plain = 0.05;
  // From the first attempt of a request to its end.
  absl::Duration deadline = absl::Seconds(60);
};

// An interval in which a running request received no token.
struct Gap {
  uint64_t request = 0;
  absl::Time begin, end;
  // Tokens received, and streams opened, by the end of the gap.
  uint32_t received = 0;
  int attempts = 0;
};

// A request that was ended because workers died while running it, from when it was first sent to its end.
struct Suspect {
  uint64_t request = 0;
  absl::Time begin, end;
};

struct Ledger {
  std::map<Fate, int64_t> fates;
  int64_t sent = 0;
  int64_t tokens = 0;
  // Streams that resumed where the previous one broke.
  int64_t resumed = 0;
  // Repeated tokens, skipped tokens, tokens with a wrong value; finishes that contradict the tokens.
  int64_t repeated = 0, skipped = 0, wrong = 0, bad_finishes = 0;
  // Tokens that poisoned requests received.
  int64_t poison_tokens = 0;
  // By code and message: how requests of kRefused, kEnded and kLost ended.
  std::map<std::string, int64_t> endings;
  // Descriptions of the first few violations.
  std::vector<std::string> findings;
  // Gaps above a threshold (kNoticeGap) in a running stream.
  std::vector<Gap> gaps;
  std::vector<Suspect> suspects;
  // Longest time between two tokens of any requests.
  absl::Duration longest_silence;
  // Seconds from sending to the first token; unsorted.
  std::vector<float> first_token_s;
};

class ClientLoad {
 public:
  ClientLoad(LoadOptions options, const Workload& workload);
  ~ClientLoad();

  // Sends for `duration`, then waits until every request has ended, at the latest by its deadline.
  void Run(absl::Duration duration);
  // Any thread: sends this many poisoned requests in addition. REQUIRES: workers with sim engines.
  void SendPoisoned(int count) { poisoned_due_ += count; }

  const Ledger& ledger() const { return ledger_; }

 private:
  class Attempt;
  struct Request;

  void Send(uint64_t n, bool poisoned, absl::Time now);
  void Begin(Request& request);
  // Handles the end of an attempt.
  void Judge(Request& request, const grpc::Status& status, absl::Time now);
  void Close(Request& request, Fate fate, const std::string& ending);

  const LoadOptions options_;
  const Workload& workload_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::atomic<int> poisoned_due_{0};
  // When any client last received a token, in ns; updated by gRPC's threads.
  std::atomic<int64_t> last_token_ns_{0};
  std::map<uint64_t, std::unique_ptr<Request>> open_;
  std::multimap<absl::Time, uint64_t> due_;
  Ledger ledger_;

  std::mutex mutex_;
  // Attempts that have ended, with their status.
  std::vector<std::pair<uint64_t, grpc::Status>> ended_;
};

}  // namespace bfio::chaos
