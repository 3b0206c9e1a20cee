#pragma once

#include <cstdint>

namespace millpond::rpc {

// The descriptors of the process when a port begins to listen.
struct Descriptors {
  int64_t limit = 0;   // that it may have open
  int64_t in_use = 0;  // by the server itself

  static Descriptors Now();

  // Has the kernel make room for the descriptors up to `limit`, or up to kRoomMax if that is less.
  // When its table of a process's descriptors is full, the kernel doubles it, and a thread that
  // accepts a connection meanwhile waits until no core uses the old table (RCU): 10 to 20 ms. It
  // may have read requests that wait with it. Called before there are any.
  static void MakeRoom(int64_t limit);
  // The table takes half a megabyte then.
  static constexpr int64_t kRoomMax = 65'536;
};

// The room for one more connection of a port.
enum class Room {
  kFree,
  kScarce,  // it is taken, and another connection should make place
  kNone,    // it is taken only if another connection makes place
};

// How many connections a port may have. Pure.
//
// The ports share the process's descriptors, and the server needs some for versions and probes. A
// count alone cannot bound that, because it is not known how many the server will need. But the
// kernel always gives the lowest free number: a client whose descriptor is N shows that N others
// are open. So each port has a highest number too. Of the descriptors that are free when the port
// begins to listen, an eighth is for the server, and another eighth for connections that make
// place. So gRPC's clients can take no place of a probe's.
//
// Promise: if a port whose connections make place has room for no more, then it has connections of
// its own, at least an eighth of the free descriptors or `count_max`, of which one can make place.
struct PlaceLimits {
  // From these numbers on, room is scarce, and from these on there is none.
  int64_t count_full = 0;
  int64_t count_max = 0;
  int64_t descriptor_full = 0;
  int64_t descriptor_max = 0;

  // `wanted_max`: the most connections that the operator wants; 0: as the descriptors allow.
  static PlaceLimits OfGrpc(const Descriptors& descriptors, int64_t wanted_max);
  // For a port whose connections make place. It takes more than it wants while none of them can, so
  // that a probe finds a place.
  static PlaceLimits OfMakingPlace(const Descriptors& descriptors, int64_t wanted_max);

  // `count`: the connections that the port has; `descriptor`: the new one's.
  Room RoomFor(int64_t count, int64_t descriptor) const;
};

}  // namespace millpond::rpc
