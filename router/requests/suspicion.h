// Whether a request may be the cause of its workers' crashes.
//
// Purpose: a request that crashes its worker must not be replayed on one worker after another, and the other
// requests on those workers must not be ended because of it. The loss of a worker counts against each request
// that is placed on it. After kAlone failures in a row the request runs alone
// (core::RequestSpec::steps_alone), so that the next failure identifies it; after kBlamed it is ended.
//
// kTokensThatClear tokens in one placement end the row, alone or not. A replay starts at the last token that
// arrived, so a crash caused by the request's own tokens repeats within the few steps whose reports were lost
// with the worker; kTokensThatClear is larger than their number. With a larger value, requests that happened
// to be on unstable workers would be suspected. A request whose workers fail later each time is ended after
// kMost failures in all. Pure counting; the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_SUSPICION_H_
#define BFIO_ROUTER_REQUESTS_SUSPICION_H_

#include <cstdint>

namespace bfio::router {

class Suspicion {
 public:
  static constexpr int kAlone = 2;
  static constexpr int kBlamed = 3;
  static constexpr int kMost = 16;
  static constexpr uint32_t kTokensThatClear = 16;

  // `since_placed`: tokens since its placement.
  void OnTokens(uint32_t since_placed) {
    if (since_placed >= kTokensThatClear) in_a_row_ = 0;
  }
  // A worker failed while the request was placed on it.
  void OnDeath() {
    ++in_a_row_;
    ++deaths_;
  }

  bool runs_alone() const { return in_a_row_ >= kAlone; }
  // Value of core::RequestSpec::steps_alone. After kTokensThatClear steps, of a token each, other requests
  // may join.
  int32_t steps_alone() const { return runs_alone() ? static_cast<int32_t>(kTokensThatClear) : 0; }
  bool blamed() const { return in_a_row_ >= kBlamed || deaths_ >= kMost; }
  int deaths() const { return deaths_; }

 private:
  int in_a_row_ = 0;
  int deaths_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_SUSPICION_H_
