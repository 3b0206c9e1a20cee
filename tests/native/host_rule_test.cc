#include "native/rpc/host_rule.h"

#include <gtest/gtest.h>

namespace millpond::rpc {
namespace {

TEST(HostRuleTest, WithoutNamesEveryHostIsAnswered) {
  EXPECT_TRUE(HostRule().Permits("evil.example", "10.0.0.1"));
}

TEST(HostRuleTest, NamesAddressesAndLoopbackArePermitted) {
  const HostRule rule({"Models.Example.com:80", "[fd00::1]:8501"});
  for (const char* const host :
       {"models.example.com", "MODELS.example.com.:1", "localhost", "LOCALHOST.:8501",
        "a.localhost:8501", "127.0.0.1:8501", "127.9.9.9", "[::1]:8501", "[::ffff:127.0.0.1]",
        "fd00::1", "[FD00::1]", "10.0.0.1", "10.0.0.1:80"}) {
    EXPECT_TRUE(rule.Permits(host, "10.0.0.1")) << host;
  }
}

TEST(HostRuleTest, OthersAreNot) {
  const HostRule rule({"box"});
  for (const char* const host : {"", "evil.example", "127.0.0.1.evil.com", "localhost.evil.com",
                                 "notlocalhost", "128.0.0.1", "10.0.0.2", "[::2]", "boxx", ":80"}) {
    EXPECT_FALSE(rule.Permits(host, "10.0.0.1")) << host;
    EXPECT_TRUE(rule.Permits(host, "")) << host << " over a UNIX socket";
  }
}

}  // namespace
}  // namespace millpond::rpc
