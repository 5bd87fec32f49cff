package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// API and worker process find Redis by Sentinel and as a Cluster, say so, keep
// its password to themselves, and work through the death of a master.
func TestSentinelAndCluster(t *testing.T) {
	t.Parallel()
	for layout, start := range map[string]func(testing.TB) *testkit.RedisGroup{
		"Sentinel, master " + testkit.MasterName: testkit.StartSentinel, "Cluster": testkit.StartCluster,
	} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			env := []string{"DATABASE_URL=" + testkit.DB(t, nil), "REDIS_URL=" + g.URL, "PIECEWORK_DATA=" + dataDir(t)}
			front, worker := launch(t, env, "api", "--listen", "127.0.0.1:0"), launch(t, env, "worker")
			front.up()
			worker.up()
			for path, p := range map[string]*program{"/readyz": front, "/readyz?": worker} {
				if status, body := p.call("GET", path, ""); status != 200 || !strings.Contains(string(body), "takes writes ("+layout+")") {
					t.Errorf("%d %s", status, body)
				}
			}
			runs := func() {
				t.Helper()
				if u := front.post("/work-units?wait=30s", `{"backend":"mock","prompt":"hi"}`); u.State != work.Succeeded {
					t.Errorf("unit %s is %s", u.ID, u.State)
				}
			}
			runs()
			_, queues := front.call("GET", "/asynqmon/api/queues", "")
			lane := regexp.MustCompile(`default:mock@[0-9a-f]{8}`).FindString(string(queues))
			for _, path := range []string{"redis_info", "queues", "servers", "queues/" + lane, "queues/" + lane + "/active_tasks"} {
				if status, body := front.call("GET", "/asynqmon/api/"+path, ""); status != 200 {
					t.Errorf("Asynqmon's %s: %d %s", path, status, body)
				}
			}
			key := "asynq:{" + lane + "}:pending"
			old := g.KillMaster(key)
			runs()
			g.AwaitFailover(key, old)
			testkit.Eventually(t, "Redis is there again", func() bool {
				_, body := front.call("GET", "/readyz", "")
				return strings.Contains(string(body), "takes writes ("+layout+")")
			})
			runs()

			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			doctor := exec.Command(self, "doctor", "--server", front.server)
			doctor.Env = []string{asProgram + "=1", "HOME=" + t.TempDir(), "REDIS_URL=" + g.URL} // its Postgres has no fsync
			said, err := doctor.CombinedOutput()
			if want := "(" + layout; err != nil || !strings.Contains(string(said), want) || !strings.Contains(string(said), "maxmemory-policy is noeviction") {
				t.Errorf("doctor: %v\n%s", err, said)
			}
			if all := front.log.String() + worker.log.String() + string(said); strings.Contains(all, testkit.GroupPassword) {
				t.Errorf("the password is told:\n%s", all)
			}
		})
	}
}
