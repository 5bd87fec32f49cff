package transcript

import (
	"math"
	"regexp"
	"strings"
)

// kind is a sort of credential that can be known by its looks. Where one of its
// keys stands, and only there, its pattern is tried: text without keys costs one
// pass, however many kinds there are.
type kind struct {
	name string
	keys []string
	// pattern begins at the key; its first group, if it has one, is what is
	// replaced. No quote or backslash may be in it: what stood in JSON must be
	// JSON afterwards.
	pattern *regexp.Regexp
	find    func(string) []int // in place of a pattern
	back    int                // bytes that the pattern begins before the key
	apart   bool               // no letter, digit, - or _ may stand before it
	random  bool               // it must look random, or it is a word
}

// maxSecret is how far a pattern looks, in bytes.
const maxSecret = 8 << 10

func credential(name string, pattern string, keys ...string) kind {
	return kind{name: name, keys: keys, pattern: regexp.MustCompile("^(?:" + pattern + ")")}
}

func (k kind) withBack(bytes int) kind { k.back = bytes; return k }
func (k kind) alone() kind             { k.apart = true; return k }
func (k kind) guessed() kind           { k.random = true; return k }

// kinds are the credentials of others that are replaced wherever they stand.
var kinds = []kind{
	credential("private key", `-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\:,.-]*`, "-----BEGIN "),
	credential("JSON web token", `eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?`, "eyJ").alone(),
	credential("encrypted web token", `eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){4}`, "eyJ").alone(),
	credential("password in a URL", `://[^\s:/@"'\\<>?#]{0,100}:([^\s/@"'\\<>]{3,})@`, "://"),
	credential("bearer token", `[Bb](?:earer|EARER)(?:\s|%20|\+){1,4}([A-Za-z0-9_.~+/=-]{16,})`, "Bearer", "bearer", "BEARER"),
	credential("basic credentials", `[Bb](?:asic|ASIC)(?:\s|%20){1,4}([A-Za-z0-9+/_-]{8,300}={0,2})`, "Basic", "basic", "BASIC").guessed(),
	credential("Anthropic", `sk-ant-[A-Za-z0-9_-]{16,}`, "sk-ant-"),
	credential("OpenAI", `sk-(?:proj-|svcacct-|admin-|or-v1-|None-)?[A-Za-z0-9_-]{32,}`, "sk-"),
	credential("GitHub", `gh[pousr]_[A-Za-z0-9]{30,}`, "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
	credential("GitHub, fine-grained", `github_pat_[A-Za-z0-9_]{30,}`, "github_pat_"),
	credential("GitLab", `gl(?:pat|ptt|dt|rt|cbt|ft|imt|agent|oas|soat)-[A-Za-z0-9_=.-]{18,}`, "glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glft-", "glimt-", "glagent-", "gloas-", "glsoat-"),
	credential("GitLab runner", `GR1348941[A-Za-z0-9_-]{20,}`, "GR1348941"),
	credential("AWS key id", `(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}`, "AKIA", "ASIA", "ABIA", "ACCA"),
	credential("AWS secret", `(?i)(?:secret_?access_?key|aws_?secret|aws_?session_?token)[A-Za-z_]{0,20}["'\\]{0,3}\s{0,5}[:=,>]{1,3}\s{0,5}["'\\]{0,3}([A-Za-z0-9/+=]{40,})`,
		"SecretAccessKey", "secretAccessKey", "secret_access_key", "SECRET_ACCESS_KEY", "aws_secret", "AWS_SECRET", "aws_session_token",
		"AWS_SESSION_TOKEN", "SessionToken"),
	credential("Google", `AIza[0-9A-Za-z_-]{35}`, "AIza"),
	credential("Google OAuth", `(?:GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,})`, "GOCSPX-", "ya29."),
	credential("Azure storage", `(?:AccountKey|SharedAccessKey|accountkey)=([A-Za-z0-9+/]{40,90}={0,2})`, "AccountKey=", "SharedAccessKey=", "accountkey="),
	credential("Azure client", `[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}`, "Q~").withBack(4),
	credential("Azure shared access", `sig=([A-Za-z0-9%+/]{40,}(?:%3[dD]|=)?)`, "sig="),
	credential("Slack", `xox[abeoprs]-[A-Za-z0-9.-]{10,}`, "xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-"),
	credential("Slack app", `xapp-[0-9]-[A-Za-z0-9-]{20,}`, "xapp-"),
	credential("Slack webhook", `hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_+-]{20,})`, "hooks.slack.com/"),
	credential("Stripe", `(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,}`, "sk_live_", "sk_test_", "sk_prod_", "rk_live_", "rk_test_", "rk_prod_"),
	credential("webhook secret", `whsec_[A-Za-z0-9+/=_-]{16,}`, "whsec_"),
	credential("Hugging Face", `(?:hf_|api_org_)[A-Za-z0-9]{30,}`, "hf_", "api_org_"),
	credential("npm", `npm_[A-Za-z0-9]{36}`, "npm_"),
	credential("npm registry", `_(?:authToken|auth|password)\s{0,3}=\s{0,3}([A-Za-z0-9+/=_.-]{10,})`, "_authToken", "_auth", "_password"),
	credential("PyPI", `pypi-[A-Za-z0-9_-]{16,}`, "pypi-"),
	credential("RubyGems", `rubygems_[a-f0-9]{40,}`, "rubygems_"),
	credential("Docker", `dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}`, "dckr_pat_", "dckr_oat_"),
	credential("SendGrid", `SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,64}`, "SG."),
	credential("Twilio", `(?:SK|AC)[0-9a-f]{32}`, "SK", "AC").alone(),
	credential("Mailgun", `key-[0-9a-z]{32}`, "key-"),
	credential("Mailchimp", `[0-9a-f]{32}-us[0-9]{1,2}`, "-us").withBack(32),
	credential("Discord", `[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}`, "M", "N", "O").alone(),
	credential("Discord webhook", `discord(?:app)?\.com/api/webhooks/[0-9]{10,25}/([A-Za-z0-9_-]{30,})`, "discord.com/api/webhooks/", "discordapp.com/api/webhooks/"),
	credential("Telegram", `[0-9]{8}:AA[A-Za-z0-9_-]{32,36}`, ":AA").withBack(8),
	credential("DigitalOcean", `do[opr]_v1_[a-f0-9]{40,}`, "dop_v1_", "doo_v1_", "dor_v1_"),
	credential("Shopify", `shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}`, "shpat_", "shpca_", "shppa_", "shpss_"),
	credential("Square", `(?:sq0[a-z]{3}-[A-Za-z0-9_-]{22,}|EAAA[A-Za-z0-9_-]{56,})`, "sq0", "EAAA"),
	credential("Facebook", `EAA[A-Za-z0-9]{60,}`, "EAA").alone(),
	credential("Heroku", `HRKU-[A-Za-z0-9_-]{30,}`, "HRKU-"),
	credential("Databricks", `dapi[a-f0-9]{32}(?:-[0-9])?`, "dapi"),
	credential("Doppler", `dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}`, "dp."),
	credential("Linear", `lin_(?:api|oauth)_[A-Za-z0-9]{32,}`, "lin_api_", "lin_oauth_"),
	credential("Notion", `(?:ntn_|secret_)[A-Za-z0-9]{40,}`, "ntn_", "secret_"),
	credential("Atlassian", `AT(?:ATT3|CTT3|BB)[A-Za-z0-9_=-]{24,}`, "ATATT3", "ATCTT3", "ATBB"),
	credential("Dropbox", `sl\.[A-Za-z0-9_-]{100,}`, "sl."),
	credential("New Relic", `NR(?:AK|JS|II)-[A-Za-z0-9]{19,}`, "NRAK-", "NRJS-", "NRII-"),
	credential("Grafana", `(?:glc_|glsa_)[A-Za-z0-9+/_=]{20,}`, "glc_", "glsa_"),
	credential("Vault", `hv[sbr]\.[A-Za-z0-9_-]{24,}`, "hvs.", "hvb.", "hvr."),
	credential("Terraform", `[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}`, ".atlasv1.").withBack(14),
	credential("Cloudflare", `v1\.0-[a-f0-9]{24}-[a-f0-9]{146}`, "v1.0-"),
	credential("Postman", `PMAK-[A-Fa-f0-9]{24}-[A-Fa-f0-9]{34}`, "PMAK-"),
	credential("PlanetScale", `pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_=.-]{32,}`, "pscale_"),
	credential("Pulumi", `pul-[a-f0-9]{40}`, "pul-"),
	credential("Sentry", `sntry[su]_[A-Za-z0-9+/=_-]{40,}`, "sntrys_", "sntryu_"),
	credential("Supabase", `sb(?:p_[a-f0-9]{40}|_secret_[A-Za-z0-9_-]{20,})`, "sbp_", "sb_secret_"),
	credential("age", `AGE-SECRET-KEY-1[A-Z0-9]{50,}`, "AGE-SECRET-KEY-1"),
	credential("Groq, Replicate, xAI, Perplexity", `(?:gsk_|r8_|xai-|pplx-)[A-Za-z0-9]{32,}`, "gsk_", "r8_", "xai-", "pplx-"),
	credential("Vercel, Fly, Railway", `(?:vercel_blob_rw_|fo1_|fm2_)[A-Za-z0-9+/=_,-]{30,}`, "vercel_blob_rw_", "fo1_", "fm2_"),
	// Whatever is called a secret and looks like one.
	{name: "named", random: true, find: named, keys: []string{"api_key", "apikey", "apiKey", "ApiKey", "API_KEY", "APIKEY", "api-key",
		"Api-Key", "API-Key",
		"secret", "Secret", "SECRET", "token", "Token", "TOKEN", "passw", "Passw", "PASSW"}},
}

// named finds the value in what begins with a name, such as token_of_x": "VALUE.
// It stands in for a pattern, which would look long at each of many names.
func named(text string) []int {
	at := 0
	pass := func(most int, ok func(byte) bool) int {
		from := at
		for at < len(text) && at-from < most && ok(text[at]) {
			at++
		}
		return at - from
	}
	space := func(c byte) bool { return c == ' ' || c == '\t' }
	quote := func(c byte) bool { return c == '"' || c == '\'' || c == '\\' }
	pass(28, func(c byte) bool { return isWord(c) || c == '_' || c == '-' })
	pass(4, quote)
	pass(3, space)
	if pass(2, func(c byte) bool { return c == '=' || c == ':' || c == '>' }) == 0 {
		return nil
	}
	pass(3, space)
	pass(4, quote)
	from := at
	if pass(200, func(c byte) bool { return isWord(c) || strings.IndexByte("_+/=.~!@#$%^&*-", c) >= 0 }) < 20 {
		return nil
	}
	return []int{from, at}
}

// keyIndex finds the kinds whose keys begin at a place. Most places are refused
// by two bytes.
type keyIndex struct {
	pairs [1 << 16 / 64]uint64
	byKey [256][]entry
	back  int // bytes that a credential begins before its key, at most
}

type entry struct {
	key  string
	kind *kind
}

var keyed = indexKinds(kinds)

func indexKinds(list []kind) *keyIndex {
	x := &keyIndex{}
	for i := range list {
		x.back = max(x.back, list[i].back)
		for _, key := range list[i].keys {
			x.byKey[key[0]] = append(x.byKey[key[0]], entry{key, &list[i]})
			if len(key) > 1 {
				pair := uint16(key[0])<<8 | uint16(key[1])
				x.pairs[pair/64] |= 1 << (pair % 64)
				continue
			}
			for second := range 256 {
				pair := uint16(key[0])<<8 | uint16(second)
				x.pairs[pair/64] |= 1 << (pair % 64)
			}
		}
	}
	return x
}

// redact replaces every credential of a known kind. What comes after the first
// most bytes of the result may be missing.
func (x *keyIndex) redact(s string, most int) string {
	var out strings.Builder
	done := 0 // of s is in out
	for i := 0; i+1 < len(s); i++ {
		if out.Len()+i-done-x.back >= most {
			s = s[:i] // no key that follows changes what is before
			break
		}
		pair := uint16(s[i])<<8 | uint16(s[i+1])
		if x.pairs[pair/64]&(1<<(pair%64)) == 0 {
			continue
		}
		from, to := x.at(s, i, done)
		if to == 0 {
			continue
		}
		out.WriteString(s[done:from])
		out.WriteString(redacted)
		done, i = to, to-1
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// begins tells whether a key of three bytes or more is in a word.
func (x *keyIndex) begins(word string) bool {
	for i := range len(word) {
		for _, e := range x.byKey[word[i]] {
			if len(e.key) >= 3 && strings.HasPrefix(word[i:], e.key) {
				return true
			}
		}
	}
	return false
}

// at is the credential whose key stands at i; to is 0 when there is none.
func (x *keyIndex) at(s string, i, done int) (from, to int) {
	for _, e := range x.byKey[s[i]] {
		if !strings.HasPrefix(s[i:], e.key) {
			continue
		}
		begin := i - e.kind.back
		if begin < done || e.kind.apart && begin > 0 && follows(s[:begin]) {
			continue
		}
		window := s[begin:min(begin+maxSecret, len(s))]
		var found []int
		if e.kind.find != nil {
			found = e.kind.find(window)
		} else {
			found = e.kind.pattern.FindStringSubmatchIndex(window)
		}
		if found == nil {
			continue
		}
		part := found[len(found)-2:]
		if part[0] < 0 {
			part = found[:2]
		}
		if e.kind.random && !looksRandom(window[part[0]:part[1]]) {
			continue
		}
		return begin + part[0], begin + part[1]
	}
	return 0, 0
}

// follows tells whether what comes next goes on a word. A letter that was
// escaped, as in \n, is none.
func follows(before string) bool {
	c := before[len(before)-1]
	if !isWord(c) && c != '-' && c != '_' {
		return false
	}
	return len(before) < 2 || before[len(before)-2] != '\\'
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// looksRandom tells whether a text is one that nobody would think of: digits and
// letters in it, and no character much more often than others.
func looksRandom(text string) bool {
	var count [256]int
	digits, letters := 0, 0
	for _, c := range []byte(text) {
		count[c]++
		switch {
		case c >= '0' && c <= '9':
			digits++
		case isWord(c):
			letters++
		}
	}
	entropy := 0.0
	for _, n := range count {
		if n > 0 {
			share := float64(n) / float64(len(text))
			entropy -= share * math.Log2(share)
		}
	}
	return letters > 0 && (digits > 0 || len(text) < 40) && entropy >= min(3.5, 0.8*math.Log2(float64(len(text))))
}
