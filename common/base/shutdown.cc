#include "common/base/shutdown.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "common/base/mutex.h"

namespace bfio {
namespace {

struct State {
  Mutex mutex;
  bool requested ABSL_GUARDED_BY(mutex) = false;
};

State& GetState() {
  static State* const state = new State;  // never destroyed: the signal thread outlives main
  return *state;
}

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  // Under nohup it is ignored, and stays so.
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

void ShutdownSignal::Install() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  std::thread([set] {
    for (int count = 0;;) {
      int number = 0;
      if (sigwait(&set, &number) != 0) continue;
      if (++count > 1) _exit(130);
      Request();
    }
  }).detach();
}

bool ShutdownSignal::Requested() {
  MutexLock lock(&GetState().mutex);
  return GetState().requested;
}

bool ShutdownSignal::WaitFor(absl::Duration timeout) {
  State& state = GetState();
  MutexLock lock(&state.mutex);
  return state.mutex.AwaitWithTimeout(absl::Condition(&state.requested), timeout);
}

void ShutdownSignal::Request() {
  MutexLock lock(&GetState().mutex);
  GetState().requested = true;
}

}  // namespace bfio
