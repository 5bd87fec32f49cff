package queue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// errAddress quotes nothing: the address has a password in it.
var errAddress = errors.New("it is no address; give each host its port, and write special characters of a password as %XX")

const singleServer = "single server"

// The limits of every connection, whatever the address says.
const (
	dialTimeout = 2 * time.Second
	ioTimeout   = 5 * time.Second
	dials       = 1 // the next command dials again
)

// dial makes a client for the Redis at address and says how that is laid out.
// It does not connect.
func dial(address string) (redis.UniversalClient, string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", errAddress
	}
	client, layout, err := dialURL(u)
	if err != nil && strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		// Half of a password with a /, a ? or a #: the error would quote it.
		return nil, "", errAddress
	}
	return client, layout, err
}

func dialURL(u *url.URL) (redis.UniversalClient, string, error) {
	switch u.Scheme {
	case "redis-sentinel", "rediss-sentinel":
		o, err := sentinelOptions(u)
		if err != nil {
			return nil, "", err
		}
		return redis.NewFailoverClient(o), "Sentinel, master " + o.MasterName, nil
	case "redis-cluster", "rediss-cluster":
		o, err := clusterOptions(u)
		if err != nil {
			return nil, "", err
		}
		return redis.NewClusterClient(o), "Cluster", nil
	}
	if strings.Contains(u.Host, ",") {
		return nil, "", errors.New("it names several hosts: write redis-sentinel:// or redis-cluster://")
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, "", err
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.DialerRetries = dialTimeout, ioTimeout, ioTimeout, dials
	o.ContextTimeoutEnabled = true
	return redis.NewClient(o), singleServer, nil
}

// sentinelOptions reads redis-sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/DB?master=NAME.
// The account is that of Redis, as in every other address; Asynq and go-redis
// take it for the Sentinels'.
func sentinelOptions(u *url.URL) (*redis.FailoverOptions, error) {
	query := u.Query()
	master := query.Get("master") // as Asynq calls it
	if master == "" {
		master = query.Get("master_name") // as go-redis does
	}
	switch {
	case u.Host == "":
		return nil, errNoHost
	case master == "":
		return nil, errors.New("it does not name the master: add ?master=NAME, the name after `sentinel monitor` in the Sentinels' configuration")
	case u.User != nil && (query.Has("username") || query.Has("password")):
		return nil, errors.New("it has two accounts for Redis: write that of Redis before the @, " +
			"and that of the Sentinels as sentinel_username and sentinel_password")
	}
	user, password := query.Get("sentinel_username"), query.Get("sentinel_password")
	query.Del("sentinel_username")
	query.Del("sentinel_password")
	query.Del("master")
	query.Set("master_name", master)
	o, err := redis.ParseFailoverURL(asGoRedisURL(u, query, "26379"))
	if err != nil {
		return nil, err
	}
	if o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly {
		return nil, errReplicas
	}
	if u.User != nil {
		o.Username, o.Password = o.SentinelUsername, o.SentinelPassword
	}
	o.SentinelUsername, o.SentinelPassword = user, password
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.DialerRetries = dialTimeout, ioTimeout, ioTimeout, dials
	o.ContextTimeoutEnabled = true
	verifyEachHost(o.TLSConfig)
	return o, nil
}

// clusterOptions reads redis-cluster://USER:PASSWORD@HOST:PORT,HOST:PORT.
func clusterOptions(u *url.URL) (*redis.ClusterOptions, error) {
	query := u.Query()
	if u.Host == "" {
		return nil, errNoHost
	}
	if path := strings.Trim(u.Path, "/"); path != "" && path != "0" || query.Has("db") {
		return nil, errors.New("it names a database, and a Cluster has one: leave the number out")
	}
	skip := query.Get("skip_verify") // go-redis knows it for the others only
	query.Del("skip_verify")
	o, err := redis.ParseClusterURL(asGoRedisURL(u, query, "6379"))
	if err != nil {
		return nil, err
	}
	if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
		return nil, errReplicas
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.DialerRetries = dialTimeout, ioTimeout, ioTimeout, dials
	o.ContextTimeoutEnabled = true
	verifyEachHost(o.TLSConfig)
	if skip != "" && o.TLSConfig != nil {
		if o.TLSConfig.InsecureSkipVerify, err = strconv.ParseBool(skip); err != nil {
			return nil, errors.New("skip_verify must be true or false")
		}
	}
	return o, nil
}

var errNoHost = errors.New("it names no host")

// errReplicas: a replica is a little behind, and a message that was just enqueued
// is not there yet.
var errReplicas = errors.New("it has read_only, replica_only or route_…: leave them out; masters alone are asked")

// asGoRedisURL writes an address as go-redis reads it, which has the first
// host in its place and the others as parameters.
func asGoRedisURL(u *url.URL, query url.Values, port string) string {
	plain := *u
	plain.Scheme, _, _ = strings.Cut(u.Scheme, "-")
	hosts := strings.Split(u.Host, ",")
	for i, host := range hosts {
		one := url.URL{Host: host}
		if one.Port() == "" && host != "" {
			hosts[i] = host + ":" + port
		}
	}
	plain.Host = hosts[0]
	for _, host := range hosts[1:] {
		query.Add("addr", host)
	}
	plain.RawQuery = query.Encode()
	return plain.String()
}

// verifyEachHost lets every server prove that it is the host that was dialled.
// go-redis would have them all prove to be the first.
func verifyEachHost(c *tls.Config) {
	if c != nil {
		c.ServerName, c.MinVersion = "", tls.VersionTLS12
	}
}

// Layout says how Redis is laid out: a single server, Sentinel, Cluster.
func (c *Client) Layout() string { return c.layout }

// everyMaster calls f for each server that takes writes, all at once: one, but
// in a Cluster. Keys that end in tag live on that server.
func (c *Client) everyMaster(ctx context.Context, f func(ctx context.Context, server redis.UniversalClient, tag string) error) error {
	cluster, ok := c.redis.(*redis.ClusterClient)
	if !ok {
		return f(ctx, c.redis, "")
	}
	// Without slots there are no masters, and nobody to say so.
	if _, err := cluster.MasterForKey(ctx, "{0}"); err != nil {
		return fmt.Errorf("find the masters: %w", err)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
		for i := range 1 << 14 { // as many as there are slots
			tag := "{" + strconv.Itoa(i) + "}"
			owner, err := cluster.MasterForKey(ctx, tag)
			if err != nil {
				return fmt.Errorf("find the masters: %w", err)
			}
			if owner == server {
				return f(ctx, server, tag)
			}
		}
		return nil // it has just lost its last slot
	})
}
