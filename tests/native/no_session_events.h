#pragma once

#include "native/rpc/session.h"

namespace millpond::testing {

// The events of a session that a test does not look at.
struct NoSessionEvents : rpc::SessionEvents {
  void OnSpoken() override {}
  void OnAcknowledged() override {}
  void OnGoawaySeen() override {}
  void OnPayload() override {}
  void OnPing() override {}
  void OnControlFrame() override {}
  void OnForcedReset() override {}
  void OnExcess(const rpc::FloodLimits::Excess&) override {}
  void OnTooManyResets() override {}
};

}  // namespace millpond::testing
