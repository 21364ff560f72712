// The worker's end of the protocol: any order of streams, epochs, plans and shutdown.
//
// Blocking calls are made only when they can return, which the target derives from what it has sent.
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/link/inbox.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bfio::worker;
  bfio::fuzz::Input input(data, size);
  Inbox inbox;
  uint64_t last_stream = 0;
  bool stream = false, greeted = false, over = false;
  // Newest epoch of this stream, whether it waits to be entered, and the epoch that was entered.
  uint64_t newest = 0;
  bool entering = false;
  std::optional<Inbox::Enter> entered;
  int64_t last_taken = 0;
  int64_t assignments_sent = 0;
  for (int i = 0; !input.empty() && i < 1000; ++i) {
    switch (input.Byte() % 7) {
      case 0:
        inbox.OnStreamUp(++last_stream);
        stream = true;
        greeted = entering = false;
        newest = 0;
        break;
      case 1: {
        const uint64_t lost = last_stream - std::min<uint64_t>(last_stream, input.Byte() % 2);
        inbox.OnStreamDown(lost);
        if (lost != last_stream) break;
        stream = entering = false;
        newest = 0;
        break;
      }
      case 2: {
        Epoch epoch;
        epoch.group.epoch = input.Number();
        const bool good = stream && epoch.group.epoch > newest;
        if (good) newest = epoch.group.epoch;
        if (good && !over) entering = true;
        inbox.OnEpoch(std::move(epoch));
        break;
      }
      case 3: {
        Plan plan;
        plan.epoch = input.Number();
        plan.apply_step = static_cast<int64_t>(input.Number());
        plan.assignments.resize(input.Byte() % 4);
        assignments_sent += static_cast<int64_t>(plan.assignments.size());
        inbox.OnPlan(std::move(plan));
        break;
      }
      case 4: {
        std::vector<Plan> due;
        const auto step = static_cast<int64_t>(input.Number());
        inbox.TakeDue(step, due);
        if (entered.has_value() && entered->over.stop_requested()) {
          bfio::fuzz::Check(due.empty(), "nothing is due in an epoch that is over");
        }
        for (const Plan& plan : due) {
          bfio::fuzz::Check(plan.apply_step <= step, "what is due is due");
          bfio::fuzz::Check(plan.apply_step > last_taken,
                            "plans come in the order of their steps, each once");
          last_taken = plan.apply_step;
          if (entered.has_value()) {
            bfio::fuzz::Check(plan.epoch == entered->epoch.group.epoch,
                              "a plan is of the epoch that was entered");
          }
        }
        break;
      }
      case 5:
        if (!over && !(stream && (!greeted || entering))) break;
        switch (Inbox::Task task = inbox.WaitForTask(); task.index()) {
          case 0:
            bfio::fuzz::Check(stream && !greeted && std::get<Inbox::Greet>(task).stream == last_stream,
                              "a stream is greeted once, before all else");
            greeted = true;
            break;
          case 1:
            bfio::fuzz::Check(entering, "an epoch is entered once");
            entered = std::get<Inbox::Enter>(std::move(task));
            bfio::fuzz::Check(entered->epoch.group.epoch == newest, "the newest epoch is entered");
            entering = false;
            last_taken = 0;
            break;
          default: bfio::fuzz::Check(over, "the end comes when it was called for");
        }
        break;
      default:
        if (input.Byte() != 0) break;
        inbox.OnShutdown("fuzz");
        over = true;
    }
    bfio::fuzz::Check(inbox.pending_assignments() >= 0 && inbox.pending_assignments() <= assignments_sent,
                      "what is pending was sent");
  }
  return 0;
}
