#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/limits.h"
#include "native/rpc/certificates.h"
#include "native/rpc/host_rule.h"
#include "native/rpc/http_route.h"
#include "native/rpc/method.h"
#include "native/rpc/rare_call_queue.h"

namespace millpond::rpc {

// How a server answers over HTTP.
struct HttpOptions {
  // The hosts that are answered; nothing: all.
  std::optional<std::vector<std::string>> hosts;
  // Paths of probes beside the usual ones, in lower case.
  std::vector<std::string> probe_paths;
  bool has_cors = false;
  int64_t body_bytes_max = int64_t{64} << 20U;
  size_t reply_bytes_max = base::kMaxReplyBytes;
  int64_t request_ns_max = 30'000'000'000;  // from the head to the answer
  int64_t connection_count_max = 0;         // 0: as the descriptors allow
  // TLS on the TCP addresses; null: none.
  std::shared_ptr<const ServerCertificates> certificates;
};

// Chooses the handler of each request over HTTP: a version, this object, or Python. Python has two
// queues: one is for probes alone, so that no other request keeps them waiting.
//
// Thread: Find and all const: any, at once. TakeCall: threads of the control plane. Close: the
// control plane. It outlives the calls.
class HttpService {
 public:
  // `runs` has the requests that versions answer. Borrows it.
  HttpService(const HttpOptions& options, const HttpRoutes* runs);
  ~HttpService();
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;

  // Returns the method that answers a request. `target` is as received.
  const Method& Find(std::string_view http_method, std::string_view target) const;
  const HostRule& hosts() const { return hosts_; }
  // The lines of headers that every answer has.
  const std::string& common_fields() const {
    return is_draining_.load(std::memory_order_relaxed) ? last_fields_ : common_fields_;
  }
  // From now on, answers close their connections.
  void SetDraining() { is_draining_ = true; }

  RareCallQueue* probes() { return &probes_; }
  RareCallQueue* pages() { return &pages_; }

 private:
  bool IsProbe(std::string_view path) const;

  const HostRule hosts_;
  const std::string common_fields_;
  const std::string last_fields_;  // with "connection: close"
  std::atomic<bool> is_draining_{false};
  const std::set<std::string> probe_paths_;
  const HttpRoutes* const runs_;
  RareCallQueue probes_;
  RareCallQueue pages_;
  const std::unique_ptr<CallHandler> alive_;
  const std::unique_ptr<CallHandler> preflight_;
  const std::unique_ptr<CallHandler> asterisk_;
  const std::unique_ptr<CallHandler> ask_probe_;
  const std::unique_ptr<CallHandler> ask_page_;
  const Method alive_route_;
  const Method preflight_route_;
  const Method asterisk_route_;
  const Method probe_route_;
  const Method page_route_;
};

}  // namespace millpond::rpc
