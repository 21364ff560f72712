// Shares of a bounded resource: no peer takes what others need, and whoever waits gets its turn.
// Purpose: the one rule for every queue, pool and quota that several peers use. A peer belongs to a group:
// its tenant, or, where no tenant is known, its address. Within the group it is a member, such as a
// connection; an empty member has the whole share of its group. A group may hold half of what the other
// groups leave, and a member half of what the other members leave of that (rounded up). So one greedy peer
// never keeps a peer that holds nothing from getting something. Peers that wait take turns: first the groups,
// and within each its members. Threads: one at a time; any for SharedCapacity.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"

namespace bfio {

struct Peer {
  std::string group, member;
  // Of a call: its connection, also where that is not the member. No part of the rule.
  std::string connection = {};
};

class FairShares {
 public:
  explicit FairShares(int64_t whole) : whole_(whole) {}
  // For what is too scarce to leave half of it unused: a group may hold all of it until another one asks for
  // the first time (Take, or Ask).
  static FairShares WholeWhileAlone(int64_t whole) {
    FairShares shares(whole);
    shares.shared_ = false;
    return shares;
  }
  // The group uses the resource, whether it gets something or not.
  void Ask(const std::string& group) {
    if (!shared_) shared_ = first_.value_or(group) != group;
    if (!shared_) first_ = group;
  }

  // Whether the peer may hold `amount` more.
  bool May(const Peer& peer, int64_t amount = 1) const {
    if (used_ + amount > whole_) return false;
    if (!shared_) return true;
    const auto group = groups_.find(peer.group);
    const int64_t held = group == groups_.end() ? 0 : group->second.held;
    const int64_t most = Half(whole_ - (used_ - held));
    if (held + amount > most) return false;
    const int64_t own = this->held(peer);
    return peer.member.empty() || own + amount <= Half(most - (held - own));
  }
  // False, without any change, beyond the peer's share.
  bool Take(const Peer& peer, int64_t amount = 1) {
    Ask(peer.group);
    if (!May(peer, amount)) return false;
    Hold(peer, amount);
    return true;
  }
  // As Take, beyond any share.
  void Hold(const Peer& peer, int64_t amount = 1) {
    used_ += amount;
    Group& group = groups_[peer.group];
    group.held += amount;
    group.members[peer.member] += amount;
  }
  // REQUIRES: the peer holds as much.
  void Give(const Peer& peer, int64_t amount = 1) {
    used_ -= amount;
    const auto group = groups_.find(peer.group);
    const auto member = group->second.members.find(peer.member);
    if ((member->second -= amount) == 0) group->second.members.erase(member);
    if ((group->second.held -= amount) == 0) groups_.erase(group);
  }

  void set_whole(int64_t whole) { whole_ = whole; }
  int64_t whole() const { return whole_; }
  int64_t used() const { return used_; }
  // What the peer itself holds.
  int64_t held(const Peer& peer) const {
    const auto group = groups_.find(peer.group);
    if (group == groups_.end()) return 0;
    const auto member = group->second.members.find(peer.member);
    return member == group->second.members.end() ? 0 : member->second;
  }

 private:
  struct Group {
    int64_t held = 0;
    absl::flat_hash_map<std::string, int64_t> members;
  };
  static int64_t Half(int64_t amount) { return (amount + 1) / 2; }

  int64_t whole_;
  int64_t used_ = 0;
  bool shared_ = true;
  // The only group so far, while not shared.
  std::optional<std::string> first_;
  // Those that hold something.
  absl::flat_hash_map<std::string, Group> groups_;
};

// Whether `newcomer` may join `members`, at most `most` of them: pointers to objects with a peer().
template <typename Members, typename Pointer>
bool MayJoin(const Members& members, const Pointer& newcomer, size_t most) {
  FairShares shares(static_cast<int64_t>(most));
  for (const auto& member : members) shares.Hold(member->peer());
  return shares.May(newcomer->peer());
}

// Shares that objects of any thread hold.
class SharedCapacity {
 public:
  explicit SharedCapacity(int64_t whole) : shares_(whole) {}
  bool Take(const Peer& peer, int64_t amount) {
    MutexLock lock(&mutex_);
    return shares_.Take(peer, amount);
  }
  void Give(const Peer& peer, int64_t amount) {
    MutexLock lock(&mutex_);
    shares_.Give(peer, amount);
  }
  int64_t held(const Peer& peer) const {
    MutexLock lock(&mutex_);
    return shares_.held(peer);
  }

 private:
  mutable Mutex mutex_;
  FairShares shares_ ABSL_GUARDED_BY(mutex_);
};

// What one object holds of a capacity; given back at its end.
class CapacityShare {
 public:
  // Null: there is no bound.
  explicit CapacityShare(std::shared_ptr<SharedCapacity> capacity) : capacity_(std::move(capacity)) {}
  ~CapacityShare() {
    if (held_ > 0) Give(held_);
  }
  CapacityShare(const CapacityShare&) = delete;
  CapacityShare& operator=(const CapacityShare&) = delete;

  // False beyond the share of the peer, which is the same in each call.
  bool Take(const Peer& peer, int64_t amount) {
    if (capacity_ != nullptr && !capacity_->Take(peer, amount)) return false;
    peer_ = peer;
    held_ += amount;
    return true;
  }
  // REQUIRES: 0 <= amount <= held().
  void Give(int64_t amount) {
    if (capacity_ != nullptr) capacity_->Give(peer_, amount);
    held_ -= amount;
  }
  int64_t held() const { return held_; }

 private:
  const std::shared_ptr<SharedCapacity> capacity_;
  Peer peer_;
  int64_t held_ = 0;
};

// What waits for a share, in turns. A turn costs at most as many steps as peers hold shares, and one.
template <typename T>
class FairQueue {
 public:
  void Push(const Peer& peer, T item) {
    Group& group = FindOrAdd(groups_, peer.group);
    FindOrAdd(group.members, peer.member).items.push_back(std::move(item));
  }

  // Takes a share for the peer whose turn it is and that may hold one more; returns the oldest of what it has
  // waiting. Empty: nothing waits, or nothing may be held by those that wait.
  std::optional<std::pair<Peer, T>> Pop(FairShares& shares) {
    for (auto group = groups_.order.begin(); group != groups_.order.end(); ++group) {
      if (!shares.May({group->name, ""})) continue;
      Turns<Member>& members = group->members;
      for (auto member = members.order.begin(); member != members.order.end(); ++member) {
        Peer peer{group->name, member->name};
        if (!shares.Take(peer)) continue;
        T item = std::move(member->items.front());
        member->items.pop_front();
        members.OnTurn(member, member->items.empty());
        groups_.OnTurn(group, members.order.empty());
        return std::pair<Peer, T>(std::move(peer), std::move(item));
      }
    }
    return std::nullopt;
  }

  // Whether a peer waits that holds nothing.
  bool SomeHoldNothing(const FairShares& shares) const {
    for (const Group& group : groups_.order) {
      for (const Member& member : group.members.order) {
        if (shares.held({group.name, member.name}) == 0) return true;
      }
    }
    return false;
  }
  bool empty() const { return groups_.order.empty(); }

 private:
  // Those with something waiting; the first has the turn.
  template <typename One>
  struct Turns {
    std::list<One> order;
    absl::flat_hash_map<std::string, typename std::list<One>::iterator> by_name;

    void OnTurn(typename std::list<One>::iterator one, bool done) {
      if (!done) return order.splice(order.end(), order, one);
      by_name.erase(one->name);
      order.erase(one);
    }
  };
  struct Member {
    std::string name;
    std::deque<T> items;
  };
  struct Group {
    std::string name;
    Turns<Member> members;
  };
  template <typename One>
  static One& FindOrAdd(Turns<One>& turns, const std::string& name) {
    const auto found = turns.by_name.find(name);
    if (found != turns.by_name.end()) return *found->second;
    turns.order.emplace_back().name = name;
    turns.by_name.emplace(name, std::prev(turns.order.end()));
    return turns.order.back();
  }

  Turns<Group> groups_;
};

}  // namespace bfio
