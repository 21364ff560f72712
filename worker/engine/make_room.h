// Who leaves a rank whose KV memory the next step would overfill: the youngest, one rule for all engines.
//
// Purpose: what grows as it runs (kv_on_demand) needs room for its next token; where there is too little,
// those of its kind that came last go, and the router places them anew. What has reserved all its room stays,
// whenever it came. Sizes are tokens, counted as the router
// counts them: prompts whole from the first step on, however far they are computed. Pure; any thread.
#ifndef BFIO_WORKER_ENGINE_MAKE_ROOM_H_
#define BFIO_WORKER_ENGINE_MAKE_ROOM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::worker {

// Tokens that the next step keeps of it.
template <typename Sequence>
int64_t NextKvTokens(const Sequence& sequence) {
  return sequence.prompt_length + sequence.generated;
}

// Takes sequences out of `active`, which is in the order of admission, until NextKvTokens of all that are
// left fits into what they have reserved and `free_tokens`. `reserved(sequence)` are its tokens now;
// `leave(sequence)` is called before one goes.
template <typename Sequence, typename Reserved, typename Leave>
void MakeRoom(int64_t free_tokens, std::vector<Sequence>& active, const Reserved& reserved,
              const Leave& leave) {
  int64_t missing = -free_tokens;
  for (const Sequence& sequence : active) {
    if (sequence.kv_on_demand) missing += NextKvTokens(sequence) - reserved(sequence);
  }
  for (size_t i = active.size(); missing > 0 && i-- > 0;) {
    if (!active[i].kv_on_demand) continue;
    missing -= NextKvTokens(active[i]);
    leave(active[i]);
    active.erase(active.begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MAKE_ROOM_H_
