#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/memory/slab.h"
#include "native/memory/slab_step.h"

namespace millpond::memory {

// Makes the slab of one version out of the spares of a pool: chooses a slab and moves memory of
// other spares to it. No page is touched or copied.
//
// Thread: one. Owner: SlabPool::Take, which chooses the parts under its mutex and performs the
// assembly without it.
class SlabAssembly {
 public:
  // Removes the parts from `spares`. The slab will have at least `slab_bytes` of addresses, and
  // `wanted_bytes` of memory, or all that the spares have. `wanted_bytes` is a multiple of
  // kSlabUnitBytes. None of the spares is being stepped.
  SlabAssembly(size_t slab_bytes, size_t wanted_bytes, std::vector<SpareSlab>* spares);

  // Returns the slab. Returns RESOURCE_EXHAUSTED if the system refuses a fresh slab; no memory has
  // been moved then. If the system refuses a move, the slab has less memory. If the place
  // of a refused move is lost too, to a hole or to other memory, returns RESOURCE_EXHAUSTED. The
  // memory that has been moved is part of the rest then.
  base::StatusOr<std::unique_ptr<Slab>> Perform();

  // The bytes of the slab that have memory after Perform.
  size_t resident_bytes() const { return resident_bytes_; }
  // Hands over the parts that are left after Perform.
  std::vector<SpareSlab> TakeRest();

 private:
  void ChooseBase(std::vector<SpareSlab>* spares);
  void ChooseDonors(std::vector<SpareSlab>* spares);
  bool Draw(SpareSlab* donor, Slab* slab);

  const size_t slab_bytes_;
  const size_t wanted_bytes_;
  SpareSlab base_;  // Without a slab if no spare is one as it is.
  std::vector<SpareSlab> donors_;
  size_t resident_bytes_ = 0;
};

}  // namespace millpond::memory
