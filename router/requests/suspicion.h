// Whether a request may be what its workers die of.
//
// Purpose: a request that kills whoever takes it must not be replayed from worker to worker, and the others
// that were on those workers must not pay for it. A worker that dies makes a suspect of each request that is
// placed on it. After kAlone deaths in a row the request runs alone (core::RequestSpec::steps_alone), so that
// the next death says something about it, and after kGuilty it is ended.
//
// kTokensThatClear tokens in one placement end the row, alone or not: a replay begins where the last token
// that came was, so a request that its own tokens are deadly in dies within the few steps whose reports were
// lost with the worker, and 16 tokens are more than those. More would make suspects of requests that only
// happened to be on workers that flap. One that dies later each time is ended after kMost deaths in all. Pure
// counting; the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_SUSPICION_H_
#define BFIO_ROUTER_REQUESTS_SUSPICION_H_

#include <cstdint>

namespace bfio::router {

class Suspicion {
 public:
  static constexpr int kAlone = 2;
  static constexpr int kGuilty = 3;
  static constexpr int kMost = 16;
  static constexpr uint32_t kTokensThatClear = 16;

  // Tokens since it was placed.
  void OnTokens(uint32_t since_placed) {
    if (since_placed >= kTokensThatClear) in_a_row_ = 0;
  }
  // A worker has died with it on board.
  void OnDeath() {
    ++in_a_row_;
    ++deaths_;
  }

  bool runs_alone() const { return in_a_row_ >= kAlone; }
  // core::RequestSpec's: a step is a token, and those that clear it let others in again.
  int32_t steps_alone() const { return runs_alone() ? static_cast<int32_t>(kTokensThatClear) : 0; }
  bool guilty() const { return in_a_row_ >= kGuilty || deaths_ >= kMost; }
  int deaths() const { return deaths_; }

 private:
  int in_a_row_ = 0;
  int deaths_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_SUSPICION_H_
