#include "worker/link/held_requests.h"

#include <algorithm>
#include <utility>

namespace bfio::worker {
namespace {

constexpr int64_t kTokenBytes = sizeof(uint32_t);
// Memory of an entry beside ids and note: maps, vectors, sampling.
constexpr int64_t kEntryBytes = 512;
// Size of one Announcement, by the same estimate. An id takes up to 5 bytes on the wire, and the router
// accepts messages of up to 16 MiB.
constexpr int64_t kMessageBytes = 1 << 20;

int64_t BytesOf(const Logprobs& logprobs) {
  return static_cast<int64_t>(logprobs.tokens.size() * sizeof(float) +
                              logprobs.top.size() * sizeof(TopToken));
}

int64_t BytesOf(const HeldRequest& held, int64_t tokens) {
  const SequenceRequest& request = held.request;
  int64_t of_token = kTokenBytes;
  if (request.sampling.logprobs)
    of_token += static_cast<int64_t>(sizeof(float)) + *request.sampling.logprobs * int64_t{sizeof(TopToken)};
  const auto ids = static_cast<int64_t>(request.prompt.size() + request.stop_token_ids.size() +
                                        held.note.earlier_tokens.size());
  return kEntryBytes + kTokenBytes * ids + of_token * tokens + BytesOf(held.note.earlier_logprobs) +
         static_cast<int64_t>(held.note.origin.size());
}

}  // namespace

void HeldRequests::Admit(SequenceRequest request, RequestNote note) {
  const Handle handle = request.handle;
  // The router did not receive the request's end, and has it generated again.
  if (const auto it = held_.find(handle); it != held_.end() && it->second.held.ended.has_value())
    Drop(handle);
  if (note.origin.empty() || held_.contains(handle)) return;
  const int64_t tokens = request.max_new_tokens;
  Entry entry;
  entry.held.request = std::move(request);
  entry.held.note = std::move(note);
  entry.bytes = BytesOf(entry.held, tokens);
  while (bytes_ + entry.bytes > max_bytes_ && !ended_.empty()) DropOldestEnded();
  if (bytes_ + entry.bytes > max_bytes_) return;
  bytes_ += entry.bytes;
  held_.emplace(handle, std::move(entry));
}

void HeldRequests::Take(const StepOutput& output, absl::Time now) {
  if (held_.empty()) return;
  for (const StepOutput::Token& token : output.tokens) {
    const auto it = held_.find(token.handle);
    if (it != held_.end()) it->second.held.tokens.push_back(token.id);
  }
  for (const StepOutput::Alternatives& one : output.alternatives) {
    const auto it = held_.find(output.tokens[one.token].handle);
    if (it == held_.end()) continue;
    Logprobs& logprobs = it->second.held.logprobs;
    logprobs.tokens.push_back(output.log_probabilities[one.token]);
    logprobs.top.insert(logprobs.top.end(), one.top.begin(), one.top.end());
  }
  for (const StepOutput::Finish& finish : output.finished) {
    const auto it = held_.find(finish.handle);
    if (it != held_.end()) End(finish.handle, it->second, finish.cause, now);
  }
  while (!ended_.empty() && now - held_.at(ended_.front()).ended >= retain_) DropOldestEnded();
}

void HeldRequests::End(Handle handle, Entry& entry, FinishCause cause, absl::Time now) {
  entry.held.ended = cause;
  entry.ended = now;
  bytes_ -= entry.bytes;
  entry.bytes = BytesOf(entry.held, static_cast<int64_t>(entry.held.tokens.size()));
  bytes_ += entry.bytes;
  ended_.push_back(handle);
}

void HeldRequests::Drop(Handle handle) {
  const auto it = held_.find(handle);
  if (it == held_.end()) return;
  // A handle may be used again: an earlier end under it must not be found then.
  if (it->second.held.ended.has_value()) std::erase(ended_, handle);
  bytes_ -= it->second.bytes;
  held_.erase(it);
}

void HeldRequests::DropOldestEnded() {
  const auto it = held_.find(ended_.front());
  ended_.pop_front();
  bytes_ -= it->second.bytes;
  held_.erase(it);
}

std::vector<Announcement> HeldRequests::Announce(uint64_t epoch) const {
  std::vector<Handle> handles;
  handles.reserve(held_.size());
  for (const auto& [handle, entry] : held_) handles.push_back(handle);
  std::sort(handles.begin(), handles.end());
  std::vector<Announcement> messages;
  int64_t bytes = kMessageBytes;
  for (const Handle handle : handles) {
    const HeldRequest& held = held_.at(handle).held;
    const int64_t size = BytesOf(held, static_cast<int64_t>(held.tokens.size()));
    if (bytes + size > kMessageBytes) {
      messages.push_back({epoch, {}});
      bytes = 0;
    }
    bytes += size;
    messages.back().requests.push_back(held);
  }
  return messages;
}

}  // namespace bfio::worker
