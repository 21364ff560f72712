// The lowest price of filling a slot, over all possible loads of an item.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_
#define BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_

namespace bfio::core {

struct SlotPrice {
  // The load at which the change of the objective is minimal, and that change.
  double load = 0;
  double gain = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_
